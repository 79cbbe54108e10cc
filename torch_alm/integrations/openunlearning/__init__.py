r"""SAUL and "+ ALM" in OpenUnlearning, with a checkout of it that nobody has to edit.

    python -m torch_alm.integrations.openunlearning CHECKOUT [hydra overrides]

runs the checkout's `src/train.py` with two more trainers, `trainer=SAUL` (the default) and
`trainer=ALM`. Everything else, overrides included, is as OpenUnlearning documents it; the
configuration is `unlearn.yaml` unless `--config-name` says otherwise. Paths are relative to the
checkout, where the run takes place.

`trainer.method_args` of both trainers:

- `alpha`, required: the level that the forget measure has to reach.
- `mu`: see `ALMConstraint`.
- `measure`: a name in `torch_alm.measures` that needs a model and a batch alone; the mean negative
  log-likelihood by default.
- `constraint`: further arguments of `ALMConstraint`, filters and rules by name, such as
  `{filter: {Mean: {window: 8, deadband: 1.0}}, rules: [{Leak: {share: 0.5}}]}`.
- `stop_when_released`: end the run after so many released steps in a row; 0 never does.

and of SAUL also `rho`, `forget_rho`, `scale` and the others of `SAULTrainer`. OpenUnlearning loads
models in bfloat16, which swallows a perturbation: pass
`++model.model_args.torch_dtype=float32 model.model_args.attn_implementation=sdpa`.

`+trainer.args.resume_from_checkpoint=true`, or a path, goes on from a checkpoint, with any of its
unlearning methods; its script alone ignores that.

Its own trainers take a constraint, too, under their own names: with

    trainer=NPO +trainer.method_args.constraint.alpha=4.0

(and `constraint.mu`, `constraint.measure`, ...) lambda+ is the weight `gamma` of their forget loss.

Needs what OpenUnlearning needs, deepspeed and lm-eval included: it imports both.
"""

"""What is measured on an unlearned model, each number with its source.

- `tofu`: pure functions of TOFU's protocol on per-item values (probability, ROUGE, truth ratio,
  model utility, forget quality).
- `memorization`: extraction strength, Min-K% membership, exact match and the margin certificate.
- `scoring` and `generation`: the two ways a model is read, teacher forced and free running.
- `evaluate`: all of it for one model, as one flat row of numbers and the rows per question.
- `judge`, `paraphrase`, `paraphrase_quality`: the entailment judge and the rephrased questions of
  SAUL's appendix, both on `chat`, a chat model that is asked every prompt once.
"""

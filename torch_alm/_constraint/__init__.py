"""The parts of a constraint; `ALMConstraint` puts them together.

`settings` says what it is given and `state` what it remembers, `observations` turns measurements
into one violation, `penalty` makes a loss of it, `hooks` listens to an optimizer, `status` tells
how it went, `checks` refuses what makes no sense, and `numbers` is the arithmetic of them all.

For a mu that is found, `auto` is the rule for one multiplier and `rates` one for each, `response`
reads the optimizer, `probe` the constraint's gradient in a step, and `between` both sides of a
`DualOptimizer`.
"""

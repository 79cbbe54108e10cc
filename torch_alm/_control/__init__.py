"""What a constraint is made of, one idea per file; `ALMConstraint` puts them together.

`numbers` and `observations` turn measurements into one violation, `smoothing` filters it, `price`
makes a loss of it, `windup` and `growth` decide what is remembered, `record`, `stall`, `answers`
and `best` say how it went, `settings` and `checkpoint` refuse what makes no sense, `attachment`
listens to an optimizer.
"""

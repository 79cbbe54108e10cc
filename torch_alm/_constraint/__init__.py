"""The parts of a constraint; `ALMConstraint` puts them together."""

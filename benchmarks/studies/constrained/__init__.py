"""A gallery: seven losses under a constraint, each with a known optimum."""

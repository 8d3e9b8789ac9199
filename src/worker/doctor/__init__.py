"""Does this model fit this card, and is the configuration right? Asked before anyone pays."""

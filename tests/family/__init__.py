"""One tiny model of each kind that users bring: how it is made, and what it is asked."""

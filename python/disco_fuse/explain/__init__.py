"""Why a strategy is as fast as it is: what it waits for, what its decisions gain, what it lacks."""

# Written by the packaging step.

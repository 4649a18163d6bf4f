"""Fit approximations of activation derivatives: the science, without torch or triton."""

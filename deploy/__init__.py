"""What a deployment needs besides the stages."""

"""What the embedded broker does with each command, by family of commands."""

"""Tests of writing."""

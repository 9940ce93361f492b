"""Time, memory and machine of a measurement, and records of it. Imports no other room."""

"""What a run tells, and the ways out, none of which holds it up."""

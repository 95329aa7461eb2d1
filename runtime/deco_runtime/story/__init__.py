"""What a run did, told after the fact: event files and learned state, read and drawn as one page of HTML."""

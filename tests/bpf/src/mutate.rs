//! Changes frames at random, repeatably.

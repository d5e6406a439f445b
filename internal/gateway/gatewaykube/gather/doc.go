// Package gather brings the gateway's objects together, has them decided upon and
// shows the decision to those who act. It keeps law 7: until everything is known
// there is no decision, and what was decided stays until there is another.
package gather

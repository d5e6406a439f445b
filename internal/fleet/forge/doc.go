// Package forge asks GitHub and GitLab about runners, and has them changed: what
// the fleet needs of the two and nothing else. It keeps law 7: what was not
// answered whole is an error with a class, never an empty list and never "gone";
// and law 8: no error, log line or dump holds a credential.
//
// One client has one credential for one organisation or group, and shares nothing
// with another: limits, pauses, tokens and what it remembers are its own. Making a
// client asks nothing.
package forge

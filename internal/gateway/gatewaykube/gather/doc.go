// Package gather collects the objects for a decision, calls the decision and publishes it to the
// controllers. It follows law 7: there is no decision until everything is known, and a decision
// stays until there is a new one.
package gather

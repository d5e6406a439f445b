// Package fleet decides how CI runners are shared among organisations: who may have
// which, how many, who must wait, and in which order everything is made and taken
// down. It keeps law 7: what is not known is never taken for gone, and nothing is
// deleted for want of an answer.
//
// All of it is pure. [Check] says which enrollments break a rule that spans objects,
// [Allocate] shares a pool's budget, [Effective] is what a hold leaves of that, and
// [Next] is the life of an enrollment, one step at a time:
//
//	Requested -> Approved -> Provisioning -> Active <-> Suspended
//	                              |            |
//	                           Failed        ends: stop intake -> drain -> deregister
//	                                               -> workloads -> secrets -> namespace
package fleet

// An Answer is what was found out about something. Its zero value is that nobody
// knows, so that what was not asked is not taken for a no.
type Answer int

// The answers.
const (
	Unknown Answer = iota
	Yes
	No
)

// String is the answer as the status of a condition.
func (a Answer) String() string {
	switch a {
	case Yes:
		return "True"
	case No:
		return "False"
	}
	return "Unknown"
}

// Is is the answer to a question that was answered.
func Is(yes bool) Answer {
	if yes {
		return Yes
	}
	return No
}

// A Condition is what is said of an object: one type of its conditions.
type Condition struct {
	Type            string
	Status          Answer
	Reason, Message string
}

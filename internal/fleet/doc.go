// Package fleet decides how organisations share CI runners. It decides which pools and how many
// runners each one gets, and which ones must wait. It also decides in which order the operator
// creates and removes objects. It implements law 7: an unknown state never counts as gone, and a
// missing answer never causes a deletion.
//
// The package is pure: it does no I/O. [Check] finds enrollments that break a cross-object rule.
// [Allocate] shares a pool's budget. [Effective] applies holds to an allocation. [Next] computes
// the next step in the life of an enrollment:
//
//	Requested -> Approved -> Provisioning -> Active <-> Suspended
//	                              |            |
//	                           Failed        ends: stop intake -> drain -> deregister
//	                                               -> workloads -> secrets -> namespace
package fleet

// An Answer is a three-valued result. Its zero value is Unknown, so a question that was never
// checked does not count as No.
type Answer int

// The answers.
const (
	Unknown Answer = iota
	Yes
	No
)

// String returns the answer as the status of a condition.
func (a Answer) String() string {
	switch a {
	case Yes:
		return "True"
	case No:
		return "False"
	}
	return "Unknown"
}

// AnswerOf converts a known result to an Answer.
func AnswerOf(yes bool) Answer {
	if yes {
		return Yes
	}
	return No
}

// A Condition is one condition of an object's status.
type Condition struct {
	Type            string
	Status          Answer
	Reason, Message string
}

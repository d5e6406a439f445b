// Package conditions has the conditions of an object's status as values that pure code can decide, and the functions
// that write them. It is not a part of kube, because the decisions of the domains import it and must not link a client.
package conditions

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxMessage is the Kubernetes limit of a condition's message, in characters.
const maxMessage = 32768

// A Condition is one condition without its type and times. The zero Condition means that no decision was made.
type Condition struct {
	Status  metav1.ConditionStatus
	Reason  string
	Message string
}

// True returns a condition that holds.
func True(reason, message string) Condition { return Condition{metav1.ConditionTrue, reason, message} }

// False returns a condition that does not hold.
func False(reason, message string) Condition {
	return Condition{metav1.ConditionFalse, reason, message}
}

// Unknown returns a condition of which it is not known whether it holds.
func Unknown(reason, message string) Condition {
	return Condition{metav1.ConditionUnknown, reason, message}
}

// Of returns the condition that holds or not, as holds says.
func Of(holds bool, reason, message string) Condition {
	if holds {
		return True(reason, message)
	}
	return False(reason, message)
}

// IsTrue reports whether the condition holds.
func (c Condition) IsTrue() bool { return c.Status == metav1.ConditionTrue }

// IsZero reports whether no decision was made.
func (c Condition) IsZero() bool { return c == Condition{} }

// Get returns the condition of that type, or the zero Condition if all has none.
func Get(all []metav1.Condition, kind string) Condition {
	c := meta.FindStatusCondition(all, kind)
	if c == nil {
		return Condition{}
	}
	return Condition{c.Status, c.Reason, c.Message}
}

// Set adds or replaces the condition of that type. generation is the generation of the object that c is about. The
// transition time stays if the status does not change; otherwise it is now, in the whole seconds that the API server
// stores.
func Set(all *[]metav1.Condition, kind string, c Condition, generation int64, now time.Time) {
	meta.SetStatusCondition(all, metav1.Condition{
		Type: kind, Status: c.Status, Reason: c.Reason, Message: Truncate(c.Message, maxMessage),
		ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
	})
}

// Truncate returns a text that a status or an event can contain: valid UTF-8, and at most the first characters
// followed by an ellipsis.
func Truncate(text string, characters int) string {
	text = strings.ToValidUTF8(text, "")
	n := 0
	for i := range text {
		if n == characters {
			return text[:i] + "…"
		}
		n++
	}
	return text
}

package arc

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tailplane/tailplane/internal/fleet"
)

// HoldManager is the field manager of what a hold writes to a scale set that somebody
// else keeps. It owns nothing there but minimum, maximum and the annotation.
const HoldManager = "tailplane-hold"

// HeldAnnotation keeps what was there before a hold, while it is in force.
const HeldAnnotation = "tailplane.dev/held-values"

// overwriteWindow is how soon after we wrote a change by somebody else is a fight: a
// GitOps engine that was not told to leave the numbers alone.
const overwriteWindow = 2 * time.Minute

// quarrelShown is how long that is told.
const quarrelShown = time.Hour

// Values are the minimum and the maximum of a scale set as they stand there; nil is
// what is not there.
type Values struct {
	Min *int64 `json:"min,omitempty"`
	Max *int64 `json:"max,omitempty"`
	// At is when a hold last wrote its own; zero in what was only read.
	At time.Time `json:"at,omitzero"`
	// Fought is when somebody last undid that within two minutes.
	Fought time.Time `json:"fought,omitzero"`
}

func (s *Set) readHeld(u *unstructured.Unstructured, notes map[string]string) {
	if note, there := notes[HeldAnnotation]; there {
		var v Values
		d := json.NewDecoder(strings.NewReader(note))
		d.DisallowUnknownFields()
		if err := d.Decode(&v); err != nil || d.More() || v.Min != nil && *v.Min < 0 || v.Max != nil && *v.Max < 0 {
			s.marred = true
		} else {
			s.Before = &v
		}
	}
	for i, f := range u.GetManagedFields() {
		if f.Manager == HoldManager && f.Subresource == "" {
			s.fields = append(s.fields, i)
		}
	}
}

// Adoption is what to do with a scale set that somebody else keeps. At most one of
// Apply and Patch is there.
type Adoption struct {
	// Apply is to be applied by [HoldManager], with force. It carries the
	// resourceVersion that was looked at: if anything was written since, it is refused,
	// and one looks again.
	Apply *unstructured.Unstructured
	// Patch is a JSON patch, which also refuses what was not looked at. It gives up what
	// a hold owned, and leaves the values.
	Patch []byte

	Trouble fleet.Trouble
	Wake    time.Time // when the trouble may be over; zero: when something changes
}

// Adopted decides what a hold, or that there is none, writes to a scale set that
// somebody else keeps. It never deletes one, and without a hold it touches none but to
// undo what a hold did:
//
//	as its keeper wants it --hold--> values kept in the annotation, 0 and 0
//	0 and 0 ----lifted----> the values back, exactly ----> nothing there is ours
//
// Whoever writes other numbers during a hold says what is to stand there afterwards:
// they are kept instead, and held again.
func Adopted(s Set, held bool, now time.Time) Adoption {
	switch {
	case s.Ending || s.Ours:
		return Adoption{} // a set of the fleet's own has its numbers from the allocation
	case s.Phase == Outdated:
		// It takes no job, and any write would make ARC try again with the old image.
		return Adoption{Trouble: Parts{Set: &s}.trouble()}
	case s.marred:
		return Adoption{Trouble: fleet.Trouble{Reason: ReasonHeldUnreadable,
			Message: "The annotation " + HeldAnnotation + " cannot be read. Set spec.minRunners and spec.maxRunners to what they are to be, and remove it."}}
	case held:
		return s.hold(now)
	case s.Before != nil:
		return s.restore()
	}
	return Adoption{}
}

func (s Set) hold(now time.Time) Adoption {
	zero := func(v *int64) bool { return v != nil && *v == 0 }
	if s.Before != nil && zero(s.said.Min) && zero(s.said.Max) {
		return s.quarrel(Adoption{}, *s.Before, now)
	}
	keep := s.said
	if b := s.Before; b != nil {
		// What still reads 0 is what we wrote.
		if zero(s.said.Min) {
			keep.Min = b.Min
		}
		if zero(s.said.Max) {
			keep.Max = b.Max
		}
		if keep.Fought = b.Fought; now.Sub(b.At) < overwriteWindow {
			keep.Fought = now.UTC().Truncate(time.Second)
		}
	}
	keep.At = now.UTC().Truncate(time.Second)
	return s.quarrel(Adoption{Apply: s.apply(&keep, Values{Min: new(int64), Max: new(int64)})}, keep, now)
}

// quarrel says whether somebody undid the hold lately.
func (s Set) quarrel(a Adoption, v Values, now time.Time) Adoption {
	if until := v.Fought.Add(quarrelShown); !v.Fought.IsZero() && now.Before(until) {
		a.Wake = until
		a.Trouble = fleet.Trouble{Reason: ReasonHoldOverwritten, Message: fmt.Sprintf("Somebody wrote other numbers during a hold, at %s. Whatever keeps this scale set must be told to ignore spec.minRunners and spec.maxRunners.", v.Fought.Format(time.RFC3339))}
	}
	return a
}

// restore first puts the values back and then gives up what a hold owned: who gives up
// a field in server-side apply that nobody else owns deletes it.
func (s Set) restore() Adoption {
	same := func(a, b *int64) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }
	zero := func(v *int64) bool { return v != nil && *v == 0 }
	before := *s.Before
	// Only what still reads 0 is ours to put back: other numbers are newer than ours.
	if !zero(s.said.Min) {
		before.Min = s.said.Min
	}
	if !zero(s.said.Max) {
		before.Max = s.said.Max
	}
	if !same(before.Min, s.said.Min) || !same(before.Max, s.said.Max) {
		note := *s.Before
		note.At = time.Time{} // what is written now is nobody's quarrel
		return Adoption{Apply: s.apply(&note, before)}
	}
	type op struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value,omitempty"`
	}
	ops := []op{{"test", "/metadata/resourceVersion", s.ResourceVersion}, {"remove", "/metadata/annotations/" + strings.ReplaceAll(HeldAnnotation, "/", "~1"), nil}}
	for i := len(s.fields) - 1; i >= 0; i-- { // from the end, so that the places stay true
		ops = append(ops, op{"remove", "/metadata/managedFields/" + strconv.Itoa(s.fields[i]), nil})
	}
	patch, err := json.Marshal(ops)
	if err != nil {
		panic(err) // strings only
	}
	return Adoption{Patch: patch}
}

// apply is all that a hold ever says of a set.
func (s Set) apply(note *Values, v Values) *unstructured.Unstructured {
	text, err := json.Marshal(note)
	if err != nil {
		panic(err) // numbers and times of this clock only
	}
	spec := map[string]any{}
	if v.Min != nil {
		spec["minRunners"] = *v.Min
	}
	if v.Max != nil {
		spec["maxRunners"] = *v.Max
	}
	u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	u.SetGroupVersionKind(Kind(SetKind))
	u.SetNamespace(s.Namespace)
	u.SetName(s.Name)
	u.SetUID(s.UID)
	u.SetResourceVersion(s.ResourceVersion)
	u.SetAnnotations(map[string]string{HeldAnnotation: string(text)})
	return u
}

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

// HoldManager is the field manager of a hold's writes to an external scale set. It owns only the
// minimum, the maximum and the annotation.
const HoldManager = "tailplane-hold"

// HeldAnnotation stores the values from before a hold, while the hold is in force.
const HeldAnnotation = "tailplane.dev/held-values"

// overwriteWindow is the time after a write of the hold within which a change by others counts as a
// conflict. A typical cause is a GitOps engine that is not configured to ignore the numbers.
const overwriteWindow = 2 * time.Minute

// overwriteReportTime is how long such a conflict is reported.
const overwriteReportTime = time.Hour

// Values are the stored minimum and maximum of a scale set; nil means absent.
type Values struct {
	Min *int64 `json:"min,omitempty"`
	Max *int64 `json:"max,omitempty"`
	// At is the time of the hold's last write. It is zero in values that were only read.
	At time.Time `json:"at,omitzero"`
	// OverwrittenAt is the last time that others undid the hold's write within two minutes.
	OverwrittenAt time.Time `json:"fought,omitzero"`
}

func (s *Set) readHeld(u *unstructured.Unstructured, notes map[string]string) {
	if note, exists := notes[HeldAnnotation]; exists {
		var v Values
		d := json.NewDecoder(strings.NewReader(note))
		d.DisallowUnknownFields()
		if err := d.Decode(&v); err != nil || d.More() || v.Min != nil && *v.Min < 0 || v.Max != nil && *v.Max < 0 {
			s.unreadable = true
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

// ExternalWrite is the next write to an external scale set. At most one of Apply and Patch is set.
type ExternalWrite struct {
	// Apply is an object for a forced server-side apply by [HoldManager]. It has the
	// resourceVersion that was read, so the API server refuses it if the object has changed. The
	// caller then reads the object again.
	Apply *unstructured.Unstructured
	// Patch is a JSON patch that also tests the resourceVersion. It gives up the hold's field
	// ownership and leaves the values.
	Patch []byte

	Failure fleet.Failure
	Wake    time.Time // when the problem may be over; zero: when something changes
}

// NextExternalWrite decides what to write to an external scale set, with or without a hold. It never deletes
// a scale set. Without a hold, it writes only to undo an earlier hold:
//
//	original values --hold--> values stored in the annotation, 0 and 0.
//	0 and 0 ----lifted----> the original values, exactly ----> no field is owned.
//
// If others write new numbers during a hold, these become the values to restore later, and the hold
// is applied again.
func NextExternalWrite(s Set, held bool, now time.Time) ExternalWrite {
	switch {
	case s.Ending || s.Managed:
		return ExternalWrite{} // the fleet's own sets get their numbers from the allocation
	case s.Phase == Outdated:
		// It takes no jobs, and any write would make ARC try again with the old image.
		return ExternalWrite{Failure: Objects{Set: &s}.failure()}
	case s.unreadable:
		return ExternalWrite{Failure: fleet.Failure{Reason: ReasonHeldUnreadable,
			Message: "The annotation " + HeldAnnotation + " cannot be read. Set spec.minRunners and spec.maxRunners to the desired numbers, then remove the annotation."}}
	case held:
		return s.hold(now)
	case s.Before != nil:
		return s.restore()
	}
	return ExternalWrite{}
}

func (s Set) hold(now time.Time) ExternalWrite {
	zero := func(v *int64) bool { return v != nil && *v == 0 }
	if s.Before != nil && zero(s.stored.Min) && zero(s.stored.Max) {
		return s.reportOverwrite(ExternalWrite{}, *s.Before, now)
	}
	keep := s.stored
	if b := s.Before; b != nil {
		// A value that still is 0 is the hold's own.
		if zero(s.stored.Min) {
			keep.Min = b.Min
		}
		if zero(s.stored.Max) {
			keep.Max = b.Max
		}
		if keep.OverwrittenAt = b.OverwrittenAt; now.Sub(b.At) < overwriteWindow {
			keep.OverwrittenAt = now.UTC().Truncate(time.Second)
		}
	}
	keep.At = now.UTC().Truncate(time.Second)
	return s.reportOverwrite(ExternalWrite{Apply: s.apply(&keep, Values{Min: new(int64), Max: new(int64)})}, keep, now)
}

// reportOverwrite adds a problem if others undid the hold recently.
func (s Set) reportOverwrite(a ExternalWrite, v Values, now time.Time) ExternalWrite {
	if until := v.OverwrittenAt.Add(overwriteReportTime); !v.OverwrittenAt.IsZero() && now.Before(until) {
		a.Wake = until
		a.Failure = fleet.Failure{
			Reason: ReasonHoldOverwritten,
			Message: fmt.Sprintf(
				"Another client wrote other numbers during a hold, at %s. Configure the owner of this scale set to ignore spec.minRunners and spec.maxRunners.",
				v.OverwrittenAt.Format(time.RFC3339),
			),
		}
	}
	return a
}

// restore first writes the original values, and then gives up the field ownership. In this order,
// because the API server deletes a field when its only owner gives it up.
func (s Set) restore() ExternalWrite {
	same := func(a, b *int64) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }
	zero := func(v *int64) bool { return v != nil && *v == 0 }
	before := *s.Before
	// Restore only values that still are 0: other numbers are newer than the hold's.
	if !zero(s.stored.Min) {
		before.Min = s.stored.Min
	}
	if !zero(s.stored.Max) {
		before.Max = s.stored.Max
	}
	if !same(before.Min, s.stored.Min) || !same(before.Max, s.stored.Max) {
		note := *s.Before
		note.At = time.Time{} // a later change does not count as a conflict
		return ExternalWrite{Apply: s.apply(&note, before)}
	}
	type op struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value,omitempty"`
	}
	ops := []op{
		{"test", "/metadata/resourceVersion", s.ResourceVersion},
		{"remove", "/metadata/annotations/" + strings.ReplaceAll(HeldAnnotation, "/", "~1"), nil},
	}
	for i := len(s.fields) - 1; i >= 0; i-- { // from the end, so that the indexes stay valid
		ops = append(ops, op{"remove", "/metadata/managedFields/" + strconv.Itoa(s.fields[i]), nil})
	}
	patch, err := json.Marshal(ops)
	if err != nil {
		panic(err) // strings only
	}
	return ExternalWrite{Patch: patch}
}

// apply builds the object that a hold applies.
func (s Set) apply(note *Values, v Values) *unstructured.Unstructured {
	text, err := json.Marshal(note)
	if err != nil {
		panic(err) // only numbers and times of this clock
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

package policy

import (
	"fmt"
	"slices"
	"strings"
)

// A Level says how strictly a stream is recorded. A higher Level is stricter.
type Level uint8

// The levels.
const (
	Off        Level = iota // not recorded
	BestEffort              // recorded if possible
	Required                // recorded, and refused if that is not possible
)

var levels = []string{"off", "bestEffort", "required"}

// String returns off, bestEffort or required.
func (l Level) String() string { return levels[min(int(l), len(levels)-1)] }

// MarshalText implements [encoding.TextMarshaler].
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (l *Level) UnmarshalText(text []byte) error {
	i := slices.Index(levels, string(text))
	if i < 0 {
		return fmt.Errorf("%.40q is not off, bestEffort or required", text)
	}
	*l = Level(i)
	return nil
}

// A Recording says which streams of a caller are recorded. The zero Recording records nothing.
type Recording struct {
	Exec        Level `json:"exec"`
	Attach      Level `json:"attach"`
	PortForward Level `json:"portForward"` // metadata and numbers of bytes only
}

// streams are the streams that can be recorded, as grants and rules name them.
var streams = []string{"exec", "attach", "portForward"}

func (r *Recording) levels() []*Level { return []*Level{&r.Exec, &r.Attach, &r.PortForward} }

// ParseRecording returns the recording of the streams exec, attach and portForward in names: the list record of a rule, of
// a grant or of a TkaSignin. An unknown or repeated name is an error. Grants and sign-ins have no field required, which
// means true.
func ParseRecording(names []string, required bool) (r Recording, err error) {
	level := BestEffort
	if required {
		level = Required
	}
	for i, name := range names {
		at := slices.Index(streams, name)
		switch {
		case at < 0:
			return Recording{}, fmt.Errorf("%.40q is not exec, attach or portForward", name)
		case slices.Contains(names[:i], name):
			return Recording{}, fmt.Errorf("%q is listed twice", name)
		}
		*r.levels()[at] = level
	}
	return r, nil
}

// Stricter returns the stricter level of each stream. The proxy combines the sign-in's record, its own destination's rules
// and the settings with it; the order does not matter.
func (r Recording) Stricter(o Recording) Recording {
	return Recording{max(r.Exec, o.Exec), max(r.Attach, o.Attach), max(r.PortForward, o.PortForward)}
}

// IsZero reports whether nothing is recorded.
func (r Recording) IsZero() bool { return r == Recording{} }

// String returns the recorded streams for people, such as "exec (required), attach (if possible)".
func (r Recording) String() string {
	var parts []string
	for i, l := range r.levels() {
		switch *l {
		case BestEffort:
			parts = append(parts, streams[i]+" (if possible)")
		case Required:
			parts = append(parts, streams[i]+" (required)")
		}
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

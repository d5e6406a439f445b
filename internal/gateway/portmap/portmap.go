// Package portmap gives the services that a group of relays carries their ports on
// the relays. It keeps law 9: the table is stored, an allocation never moves, and a
// port that was given back rests, so that a client that still knows its old service
// never reaches another one.
package portmap

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// The range of ports that services get on the relays, and how long a port that
// was given back rests before another service gets it.
const (
	First = 10000
	Last  = 10999
	Rest  = 10 * time.Minute
)

// A Key is what a port of a group of relays leads to.
type Key struct {
	Service    string `json:"service"`    // "<namespace>.<name>"
	Protocol   string `json:"protocol"`   // "TCP" or "UDP"
	TargetPort uint16 `json:"targetPort"` // in the tailnet
}

// Compare orders by service, protocol and port.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Service, o.Service), cmp.Compare(k.Protocol, o.Protocol), cmp.Compare(k.TargetPort, o.TargetPort))
}

// An Port is one port of a group of relays. With Until it is at rest:
// nothing listens there, and until then only the same Key may have it again.
type Port struct {
	Key
	MatchPort uint16    `json:"matchPort"`
	Until     time.Time `json:"until,omitzero"`
}

// A Table is the ports of one group, sorted by MatchPort. The zero table is
// that of a new group. It is never changed, only replaced, and whoever stores it
// must do so on condition that nobody else did.
type Table struct {
	Ports []Port `json:"ports"`
}

// Parse reads what Encode wrote. It refuses whatever Allocate could not
// have made: to begin anew would move ports that are in use.
func Parse(text []byte) (Table, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	var t Table
	if err := d.Decode(&t); err != nil {
		return Table{}, fmt.Errorf("table of ports: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Table{}, errors.New("table of ports: something follows it")
	}
	keys := map[Key]bool{}
	for i, p := range t.Ports {
		switch {
		case p.MatchPort < First || p.MatchPort > Last:
			return Table{}, fmt.Errorf("table of ports: %d is not within %d-%d", p.MatchPort, First, Last)
		case i > 0 && t.Ports[i-1].MatchPort >= p.MatchPort:
			return Table{}, fmt.Errorf("table of ports: %d is not in its place, or there twice", p.MatchPort)
		case p.Service == "" || p.TargetPort == 0 || p.Protocol != "TCP" && p.Protocol != "UDP":
			return Table{}, fmt.Errorf("table of ports: %d leads nowhere: %q, %q, %d", p.MatchPort, p.Service, p.Protocol, p.TargetPort)
		case keys[p.Key]:
			return Table{}, fmt.Errorf("table of ports: %s %s %d has two", p.Service, p.Protocol, p.TargetPort)
		}
		keys[p.Key] = true
	}
	return t, nil
}

// Encode is the table as it is stored: JSON, equal for equal tables.
func (t Table) Encode() []byte {
	text, err := json.Marshal(t)
	if err != nil {
		panic(err) // plain values only, but for a year above 9999
	}
	return text
}

// Lookup returns the port of a key, and false if it has none in use.
func (t Table) Lookup(k Key) (uint16, bool) {
	for _, p := range t.Ports {
		if p.Key == k && p.Until.IsZero() {
			return p.MatchPort, true
		}
	}
	return 0, false
}

// Allocate gives every wanted key a port and takes those back that nobody wants.
// A key that has a port keeps it. Keys are served in their order, each the lowest
// free port; those for which none is left are refused, and wake is when a port
// next ends its rest, so that it is worth while to ask again. wake is zero if
// none is refused. Neither t nor wanted is changed.
func (t Table) Allocate(wanted []Key, now time.Time) (next Table, refused []Key, wake time.Time) {
	need := make(map[Key]bool, len(wanted))
	for _, k := range wanted {
		need[k] = true
	}
	taken := make(map[uint16]bool, len(t.Ports))
	for _, p := range t.Ports {
		switch {
		case need[p.Key]:
			p.Until = time.Time{}
			delete(need, p.Key)
		case p.Until.IsZero():
			p.Until = now.Add(Rest).UTC()
		case !now.Before(p.Until):
			continue
		}
		next.Ports = append(next.Ports, p)
		taken[p.MatchPort] = true
	}
	free := uint16(First)
	left := make([]Key, 0, len(need))
	for k := range need {
		left = append(left, k)
	}
	slices.SortFunc(left, Key.Compare)
	for i, k := range left {
		for free <= Last && taken[free] {
			free++
		}
		if free > Last {
			refused = left[i:]
			break
		}
		next.Ports = append(next.Ports, Port{Key: k, MatchPort: free})
		taken[free] = true
	}
	slices.SortFunc(next.Ports, func(a, b Port) int { return cmp.Compare(a.MatchPort, b.MatchPort) })
	if len(refused) > 0 {
		for _, p := range next.Ports {
			if !p.Until.IsZero() && (wake.IsZero() || p.Until.Before(wake)) {
				wake = p.Until
			}
		}
	}
	return next, refused, wake
}

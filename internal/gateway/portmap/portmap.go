// Package portmap allocates the ports of services on a group of relays. It follows law 9: the
// table is stored, and an allocation never moves. A released port is not reused for some time, so
// that a client with an old port number does not reach another service.
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

// The range of ports for services on the relays, and the time before a released port can get
// another service.
const (
	First = 10000
	Last  = 10999
	Rest  = 10 * time.Minute
)

// A Key is the destination of a port on a group of relays.
type Key struct {
	Service    string `json:"service"`    // "<namespace>.<name>"
	Protocol   string `json:"protocol"`   // "TCP" or "UDP"
	TargetPort uint16 `json:"targetPort"` // in the tailnet
}

// Compare compares by service, protocol and port.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Service, o.Service), cmp.Compare(k.Protocol, o.Protocol), cmp.Compare(k.TargetPort, o.TargetPort))
}

// A Port is one port on a group of relays. If Until is set, the port is released: the relays do
// not listen on it, and before Until only the same Key can get it again.
type Port struct {
	Key
	MatchPort uint16    `json:"matchPort"`
	Until     time.Time `json:"until,omitzero"`
}

// A Table is the ports of one group, sorted by MatchPort. The zero Table is that of a new group.
// Methods return a new Table and never modify the receiver. Callers must store it with optimistic
// locking.
type Table struct {
	Ports []Port `json:"ports"`
}

// Parse parses the output of Encode. It rejects tables that Allocate cannot have produced.
// Starting with an empty table instead would move ports that are in use.
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

// Encode returns the stored form of the table as JSON. Equal tables have equal encodings.
func (t Table) Encode() []byte {
	text, err := json.Marshal(t)
	if err != nil {
		panic(err) // plain values only; fails just for a year above 9999
	}
	return text
}

// Lookup returns the port of a key. ok is false if the key has no active port.
func (t Table) Lookup(k Key) (uint16, bool) {
	for _, p := range t.Ports {
		if p.Key == k && p.Until.IsZero() {
			return p.MatchPort, true
		}
	}
	return 0, false
}

// Allocate assigns a port to every key in wanted and releases the ports of other keys. A key that
// has a port keeps it. New keys are processed in sorted order, and each gets the lowest free port.
// Keys without a free port are returned in refused; wake is then the time when the next released
// port becomes free. wake is zero if no key is refused. Allocate modifies neither t nor wanted.
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

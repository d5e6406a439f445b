package gateway

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/tailplane/tailplane/internal/util/strictjson"
)

// A PortTable allocates the ports of services on a group of relays. It follows law 9: the table is
// stored, and an allocation never moves. A released port is not reused for some time, so that a
// client with an old port number does not reach another service.

// The range of ports for services on the relays, and the time before a released port can get
// another service.
const (
	FirstPort      = 10000
	LastPort       = 10999
	PortReuseDelay = 10 * time.Minute
)

// A PortKey is the destination of a port on a group of relays.
type PortKey struct {
	Service    string `json:"service"`    // "<namespace>.<name>"
	Protocol   string `json:"protocol"`   // "TCP" or "UDP"
	TargetPort uint16 `json:"targetPort"` // in the tailnet
}

// Compare compares by service, protocol and port.
func (k PortKey) Compare(o PortKey) int {
	return cmp.Or(cmp.Compare(k.Service, o.Service), cmp.Compare(k.Protocol, o.Protocol), cmp.Compare(k.TargetPort, o.TargetPort))
}

// A TablePort is one port on a group of relays. If Until is set, the port is released: the relays do
// not listen on it, and before Until only the same PortKey can get it again.
type TablePort struct {
	PortKey
	MatchPort uint16    `json:"matchPort"`
	Until     time.Time `json:"until,omitzero"`
}

// A PortTable is the ports of one group, sorted by MatchPort. The zero PortTable is that of a new group.
// Methods return a new PortTable and never modify the receiver. Callers must store it with optimistic
// locking.
type PortTable struct {
	Ports []TablePort `json:"ports"`
}

// ParsePortTable parses the output of Encode. It rejects tables that Allocate cannot have produced.
// Starting with an empty table instead would move ports that are in use.
func ParsePortTable(text []byte) (PortTable, error) {
	var t PortTable
	if err := strictjson.UnmarshalKnown(text, &t); err != nil {
		return PortTable{}, fmt.Errorf("port table: %w", err)
	}
	keys := map[PortKey]bool{}
	for i, p := range t.Ports {
		switch {
		case p.MatchPort < FirstPort || p.MatchPort > LastPort:
			return PortTable{}, fmt.Errorf("port table: %d is not within %d-%d", p.MatchPort, FirstPort, LastPort)
		case i > 0 && t.Ports[i-1].MatchPort >= p.MatchPort:
			return PortTable{}, fmt.Errorf("port table: %d is out of order or duplicate", p.MatchPort)
		case p.Service == "" || p.TargetPort == 0 || p.Protocol != "TCP" && p.Protocol != "UDP":
			return PortTable{}, fmt.Errorf(
				"port table: %d has no valid destination: %q, %q, %d",
				p.MatchPort,
				p.Service,
				p.Protocol,
				p.TargetPort,
			)
		case keys[p.PortKey]:
			return PortTable{}, fmt.Errorf("port table: %s %s %d has two ports", p.Service, p.Protocol, p.TargetPort)
		}
		keys[p.PortKey] = true
	}
	return t, nil
}

// Encode returns the stored form of the table as JSON. Equal tables have equal encodings.
func (t PortTable) Encode() []byte {
	text, err := json.Marshal(t)
	if err != nil {
		panic(err) // plain values only; fails just for a year above 9999
	}
	return text
}

// Lookup returns the port of a key. ok is false if the key has no active port.
func (t PortTable) Lookup(k PortKey) (uint16, bool) {
	for _, p := range t.Ports {
		if p.PortKey == k && p.Until.IsZero() {
			return p.MatchPort, true
		}
	}
	return 0, false
}

// Allocate assigns a port to every key in requested and releases the ports of other keys. A key that
// has a port keeps it. New keys are processed in sorted order, and each gets the lowest free port.
// Keys without a free port are returned in refused; wake is then the time when the next released
// port becomes free. wake is zero if no key is refused. Allocate modifies neither t nor requested.
func (t PortTable) Allocate(requested []PortKey, now time.Time) (next PortTable, refused []PortKey, wake time.Time) {
	need := sets.New(requested...)
	taken := make(map[uint16]bool, len(t.Ports))
	for _, p := range t.Ports {
		switch {
		case need.Has(p.PortKey):
			p.Until = time.Time{}
			need.Delete(p.PortKey)
		case p.Until.IsZero():
			p.Until = now.Add(PortReuseDelay).UTC()
		case !now.Before(p.Until):
			continue
		}
		next.Ports = append(next.Ports, p)
		taken[p.MatchPort] = true
	}
	free := uint16(FirstPort)
	unassigned := slices.SortedFunc(maps.Keys(need), PortKey.Compare)
	for i, k := range unassigned {
		for free <= LastPort && taken[free] {
			free++
		}
		if free > LastPort {
			refused = unassigned[i:]
			break
		}
		next.Ports = append(next.Ports, TablePort{PortKey: k, MatchPort: free})
		taken[free] = true
	}
	slices.SortFunc(next.Ports, func(a, b TablePort) int { return cmp.Compare(a.MatchPort, b.MatchPort) })
	if len(refused) > 0 {
		for _, p := range next.Ports {
			if !p.Until.IsZero() && (wake.IsZero() || p.Until.Before(wake)) {
				wake = p.Until
			}
		}
	}
	return next, refused, wake
}

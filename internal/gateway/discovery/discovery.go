// Package discovery decides which services of a tailnet are there, for one
// TailscaleGateway. It keeps law 7: what was known last stays, whatever the tailnet
// answers, until it was missing often enough and for long enough.
package discovery

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
)

// A VIP is a service as a tailnet lists it.
type VIP struct {
	Name  string   // "svc:web"
	Tags  []string // "tag:k8s"
	Ports []string // "tcp:443", or "do-not-validate"
}

// A Device is a node as a tailnet lists it.
type Device struct {
	Tags     []string
	External bool // shared into this tailnet from another one: never a target
}

// A Found is one service that a tailnet has.
type Found struct {
	Service string   // the label: "web"
	VIP     bool     // a VIP service; else devices that carry the tag "tag:svc-<service>"
	Tags    []string // what it carries, sorted
	Ports   []uint16 // TCP, sorted; empty if the tailnet does not say
}

// Select returns which of the listed services and devices a discovery takes,
// sorted by name, and a sentence for each that it leaves out although it was
// asked for. A service that is there both as a VIP and as devices is the VIP.
func Select(d gatewayv1alpha1.ServiceDiscovery, vips []VIP, devices []Device) (found []Found, left []string) {
	services := map[string]Found{}
	add := func(name string, f Found) {
		if !gateway.MatchAny(d.Patterns, "svc:"+name) || gateway.MatchAny(d.ExcludePatterns, "svc:"+name) {
			return
		}
		if !gateway.IsLabel(name) {
			left = append(left, "svc:"+gateway.Printable(name)+" is left out: its name is no DNS label")
			return
		}
		if old, ok := services[name]; ok {
			f.VIP, f.Tags, f.Ports = f.VIP || old.VIP, append(old.Tags, f.Tags...), append(old.Ports, f.Ports...)
		}
		slices.Sort(f.Tags)
		slices.Sort(f.Ports)
		f.Service, f.Tags, f.Ports = name, slices.Compact(f.Tags), slices.Compact(f.Ports)
		services[name] = f
	}
	for _, v := range vips {
		if name, ok := strings.CutPrefix(v.Name, "svc:"); ok {
			add(name, Found{VIP: true, Tags: slices.Clone(v.Tags), Ports: tcpPorts(v.Ports)})
		}
	}
	for _, dev := range devices {
		if dev.External {
			continue
		}
		for _, tag := range dev.Tags {
			name, ok := strings.CutPrefix(tag, "tag:svc-")
			if ok && takes(d.Tags, tag, dev.Tags) {
				add(name, Found{Tags: slices.Clone(dev.Tags)})
			}
		}
	}
	slices.Sort(left)
	return slices.SortedFunc(maps.Values(services), func(a, b Found) int { return cmp.Compare(a.Service, b.Service) }), slices.Compact(left)
}

// takes says whether the tags of a discovery mean the service tag of a device:
// they match it, or a tag of the device that names no service.
func takes(patterns []string, service string, device []string) bool {
	return len(patterns) == 0 || gateway.MatchAny(patterns, service) || slices.ContainsFunc(device, func(tag string) bool {
		return !strings.HasPrefix(tag, "tag:svc-") && gateway.MatchAny(patterns, tag)
	})
}

func tcpPorts(ports []string) (numbers []uint16) {
	for _, p := range ports {
		if n, ok := strings.CutPrefix(p, "tcp:"); ok {
			if port, ok := gateway.ParsePort(n); ok {
				numbers = append(numbers, port)
			}
		}
	}
	return numbers
}

// What a list must lack before anything is given up.
const (
	missingLists = 2               // lists in a row that lack one service
	emptyLists   = 3               // lists in a row that lack every service,
	emptyFor     = 5 * time.Minute // over at least this time
)

// A Memory is what is known of the services of one tailnet, for one
// TailscaleGateway. The zero Memory knows nothing. It is never changed, only
// replaced.
type Memory struct {
	Synced time.Time // when the tailnet was last read without an error
	Stale  bool      // the last reading failed, or is not believed yet

	services   map[string]known // by label
	empty      int              // lists in a row that lacked everything
	emptySince time.Time        // when the first of them came
}

// A known is one service that is there.
type known struct {
	Found
	missing int // lists in a row that lacked it
}

// Remember returns what stored services say, after a restart.
func Remember(stored []Found) Memory {
	m := Memory{services: map[string]known{}, Stale: true}
	for _, f := range stored {
		m.services[f.Service] = known{Found: f}
	}
	return m
}

// Next returns what is known after a reading of the tailnet at now: list, or failed.
// A failure changes nothing but Stale. A service must be missing from two lists in a
// row before it is removed, and a list that lacks everything must come three times
// over five minutes.
func (m Memory) Next(list []Found, failed bool, now time.Time) Memory {
	next := m
	if failed {
		next.Stale = true
		return next
	}
	next.Synced = now
	if len(list) == 0 && len(m.services) > 0 {
		if next.empty++; next.empty == 1 {
			next.emptySince = now
		}
		next.Stale = next.empty < emptyLists || now.Sub(next.emptySince) < emptyFor
		if !next.Stale {
			next.services = nil
		}
		return next
	}
	next.Stale, next.empty, next.emptySince = false, 0, time.Time{}
	next.services = make(map[string]known, len(m.services)+len(list))
	for name, k := range m.services {
		if k.missing++; k.missing < missingLists {
			next.services[name] = k
		}
	}
	for _, f := range list {
		next.services[f.Service] = known{Found: f}
	}
	return next
}

// Present returns the services that are there, sorted by name.
func (m Memory) Present() []Found {
	var there []Found
	for _, k := range m.services {
		there = append(there, k.Found)
	}
	slices.SortFunc(there, func(a, b Found) int { return cmp.Compare(a.Service, b.Service) })
	return there
}

// DefaultPort is the port of a service's route: wished, if the service has it or
// does not say, else its lowest TCP port.
func (f Found) DefaultPort(wished uint16) uint16 {
	if len(f.Ports) == 0 || slices.Contains(f.Ports, wished) {
		return wished
	}
	return f.Ports[0]
}

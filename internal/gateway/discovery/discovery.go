// Package discovery computes the services of a tailnet for one TailscaleGateway. It follows law 7:
// a known service stays, whatever the API returns, until it was missing often enough and for long
// enough.
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

// A VIP is a service in the tailnet's list of services.
type VIP struct {
	Name  string   // "svc:web"
	Tags  []string // "tag:k8s"
	Ports []string // "tcp:443", or "do-not-validate"
}

// A Device is a node in the tailnet's list of devices.
type Device struct {
	Tags     []string
	External bool // shared into this tailnet from another one; never a target
}

// A Found is one service of a tailnet.
type Found struct {
	Service string   // the label: "web"
	VIP     bool     // true for a VIP service, false for devices with the tag "tag:svc-<service>"
	Tags    []string // tags of the service, sorted
	Ports   []uint16 // TCP ports, sorted; empty if the tailnet does not list ports
}

// Select returns the services and devices that match the discovery, sorted by name. left contains
// a message for each match that is left out. A service that exists both as a VIP and as devices is
// returned as a VIP.
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

// takes reports whether the tags of a discovery select the service tag of a device. They must
// match the service tag itself, or a tag of the device that does not name a service.
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

// Conditions before missing services are removed.
const (
	missingLists = 2               // consecutive lists without one service
	emptyLists   = 3               // consecutive lists without any service,
	emptyFor     = 5 * time.Minute // over at least this time
)

// A Memory is the known services of one tailnet for one TailscaleGateway. The zero Memory knows no
// services. Methods return a new Memory and never modify the receiver.
type Memory struct {
	Synced time.Time // last successful read of the tailnet
	Stale  bool      // the last read failed, or its empty list is not accepted yet

	services   map[string]known // by label
	empty      int              // consecutive empty lists
	emptySince time.Time        // time of the first of them
}

// A known is a present service.
type known struct {
	Found
	missing int // consecutive lists without it
}

// Remember returns a Memory with the stored services, for use after a restart.
func Remember(stored []Found) Memory {
	m := Memory{services: map[string]known{}, Stale: true}
	for _, f := range stored {
		m.services[f.Service] = known{Found: f}
	}
	return m
}

// Next returns the Memory after a read of the tailnet at time now. A failed read only sets Stale.
// A service is removed when two consecutive lists lack it. All services are removed only after
// three consecutive empty lists over at least five minutes.
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

// Present returns the present services, sorted by name.
func (m Memory) Present() []Found {
	var there []Found
	for _, k := range m.services {
		there = append(there, k.Found)
	}
	slices.SortFunc(there, func(a, b Found) int { return cmp.Compare(a.Service, b.Service) })
	return there
}

// DefaultPort returns the port for the service's route: wished if the service has it or lists no
// ports, otherwise its lowest TCP port.
func (f Found) DefaultPort(wished uint16) uint16 {
	if len(f.Ports) == 0 || slices.Contains(f.Ports, wished) {
		return wished
	}
	return f.Ports[0]
}

package gateway

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

// Discovery computes the services of a tailnet for one TailscaleGateway. It follows law 7: a known
// service stays, whatever the API returns, until it was missing often enough and for long enough.

// A DiscoveredService is one service of a tailnet.
type DiscoveredService struct {
	Service string   // the label: "web"
	VIP     bool     // true for a VIP service, false for devices with the tag "tag:svc-<service>"
	Tags    []string // tags of the service, sorted
	Ports   []uint16 // TCP ports, sorted; empty if the tailnet does not list ports
}

// SelectServices returns the services and devices that match the discovery, sorted by name. omitted contains
// a message for each match that is left out. A service that exists both as a VIP and as devices is
// returned as a VIP.
func SelectServices(
	d gatewayv1alpha1.ServiceDiscovery,
	vips []tsapi.Service,
	devices []tsapi.Device,
) (found []DiscoveredService, omitted []string) {
	services := map[string]DiscoveredService{}
	add := func(name string, f DiscoveredService) {
		if !MatchAny(d.Patterns, "svc:"+name) || MatchAny(d.ExcludePatterns, "svc:"+name) {
			return
		}
		if !IsLabel(name) {
			omitted = append(omitted, "svc:"+Printable(name)+" is skipped: its name is not a DNS label")
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
			add(name, DiscoveredService{VIP: true, Tags: slices.Clone(v.Tags), Ports: tcpPorts(v.Ports)})
		}
	}
	for _, dev := range devices {
		if dev.External {
			continue
		}
		for _, tag := range dev.Tags {
			name, ok := strings.CutPrefix(tag, "tag:svc-")
			if ok && selectsTags(d.Tags, tag, dev.Tags) {
				add(name, DiscoveredService{Tags: slices.Clone(dev.Tags)})
			}
		}
	}
	slices.Sort(omitted)
	return slices.SortedFunc(
			maps.Values(services),
			func(a, b DiscoveredService) int { return cmp.Compare(a.Service, b.Service) },
		), slices.Compact(
			omitted,
		)
}

// selectsTags reports whether the tags of a discovery select the service tag of a device. They must
// match the service tag itself, or a tag of the device that does not name a service.
func selectsTags(patterns []string, service string, device []string) bool {
	return len(patterns) == 0 || MatchAny(patterns, service) || slices.ContainsFunc(device, func(tag string) bool {
		return !strings.HasPrefix(tag, "tag:svc-") && MatchAny(patterns, tag)
	})
}

func tcpPorts(ports []string) (numbers []uint16) {
	for _, p := range ports {
		if n, ok := strings.CutPrefix(p, "tcp:"); ok {
			if port, ok := ParsePort(n); ok {
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

// A KnownServices is the known services of one tailnet for one TailscaleGateway. The zero value knows no
// services. Methods return a new value and never modify the receiver.
type KnownServices struct {
	Synced time.Time // last successful read of the tailnet
	Stale  bool      // the last read failed, or its empty list is not accepted yet

	services   map[string]knownService // by label
	empty      int                     // consecutive empty lists
	emptySince time.Time               // time of the first of them
}

// A knownService is a present service.
type knownService struct {
	DiscoveredService
	missing int // consecutive lists without it
}

// NewKnownServices returns a KnownServices with the stored services, for use after a restart.
func NewKnownServices(stored []DiscoveredService) KnownServices {
	m := KnownServices{services: map[string]knownService{}, Stale: true}
	for _, f := range stored {
		m.services[f.Service] = knownService{DiscoveredService: f}
	}
	return m
}

// Update returns the KnownServices after a read of the tailnet at time now. A failed read only sets Stale.
// A service is removed when two consecutive lists lack it. All services are removed only after
// three consecutive empty lists over at least five minutes.
func (m KnownServices) Update(list []DiscoveredService, failed bool, now time.Time) KnownServices {
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
	next.services = make(map[string]knownService, len(m.services)+len(list))
	for name, k := range m.services {
		if k.missing++; k.missing < missingLists {
			next.services[name] = k
		}
	}
	for _, f := range list {
		next.services[f.Service] = knownService{DiscoveredService: f}
	}
	return next
}

// Services returns the present services, sorted by name.
func (m KnownServices) Services() []DiscoveredService {
	var present []DiscoveredService
	for _, k := range m.services {
		present = append(present, k.DiscoveredService)
	}
	slices.SortFunc(present, func(a, b DiscoveredService) int { return cmp.Compare(a.Service, b.Service) })
	return present
}

// DefaultPort returns the port for the service's route: preferred if the service has it or lists no
// ports, otherwise its lowest TCP port.
func (f DiscoveredService) DefaultPort(preferred uint16) uint16 {
	if len(f.Ports) == 0 || slices.Contains(f.Ports, preferred) {
		return preferred
	}
	return f.Ports[0]
}

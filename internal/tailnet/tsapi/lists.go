package tsapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	tailscale "tailscale.com/client/tailscale/v2"
)

// Lists is a snapshot of the devices and services of a tailnet. It is shared and must not be
// modified.
type Lists struct {
	At       time.Time // when the request was sent
	Devices  []Device
	Services []Service
	// ServicesRefused is set if the credential may not list services. The services are then
	// unknown, which differs from an empty list.
	ServicesRefused *Error
}

// Device is a machine of the tailnet, or a machine that was shared into it.
type Device struct {
	ID        string // the stable ID, such as n1CNTRL
	Name      string // with the MagicDNS suffix, without the trailing dot
	Hostname  string
	Addresses []netip.Addr
	Tags      []string
	External  bool // shared into the tailnet; its name is of another tailnet
	Ephemeral bool
	Connected bool
	Created   time.Time // zero: unknown
	LastSeen  time.Time // zero: it is connected, or never was
}

// Service is a tailnet service with its addresses.
type Service struct {
	Name        string       // svc:name
	Addrs       []netip.Addr // IPv4 first
	Comment     string
	Annotations map[string]string
	Ports       []string // such as tcp:443; or only do-not-validate
	Tags        []string
}

// Lists returns devices and services that are at most maxAge old. It returns cached values or
// fetches new ones, with one request for all concurrent callers. The error is an *[Error], or the
// error of the context. Cached values survive an error.
func (c *Client) Lists(ctx context.Context, maxAge time.Duration) (*Lists, error) {
	if !c.enter() {
		return nil, &Error{Op: ListDevices, Class: Dropped}
	}
	defer c.leave() // both lists count as one call
	devices, err := c.deviceList.get(ctx, c, ListDevices, maxAge, func(ctx context.Context) ([]Device, error) { return c.devices(ctx) })
	if err != nil {
		return nil, err
	}
	services, err := c.Services(ctx, maxAge) // after the devices: if they exist, the tailnet exists
	if err != nil {
		return nil, err
	}
	l := &Lists{At: devices.At, Devices: devices.Value, Services: services.Services, ServicesRefused: services.Refused}
	if services.At.Before(l.At) {
		l.At = services.At
	}
	return l, nil
}

// Services is a snapshot of the services of a tailnet.
type Services struct {
	At       time.Time
	Services []Service
	Refused  *Error // like Lists.ServicesRefused
}

// Services returns services that are at most maxAge old. It returns an empty list for a tailnet
// without the feature. It cannot detect that the tailnet does not exist; the device list can.
func (c *Client) Services(ctx context.Context, maxAge time.Duration) (Services, error) {
	s, err := c.serviceList.get(ctx, c, ListServices, maxAge, func(ctx context.Context) (Services, error) {
		list, err := c.services(ctx)
		switch failure, _ := errors.AsType[*Error](err); {
		case failure != nil && failure.Class == NotFound && !failure.AtToken:
			return Services{}, nil
		case failure != nil && failure.Class == Forbidden:
			return Services{Refused: failure}, nil
		}
		return Services{Services: list}, err
	})
	s.Value.At = s.At
	return s.Value, err
}

// LastRead returns when the devices and the services were last read; zero: never.
func (c *Client) LastRead() (devices, services time.Time) {
	return c.deviceList.readAt().At, c.serviceList.readAt().At
}

// A reading is a value with the time of its request.
type reading[T any] struct {
	At    time.Time
	Value T
}

// A cachedRead caches the last successful reading.
type cachedRead[T any] struct {
	flight flight[reading[T]]
	last   atomic.Pointer[reading[T]]
}

func (m *cachedRead[T]) readAt() (r reading[T]) {
	if last := m.last.Load(); last != nil {
		r = *last
	}
	return r
}

// get returns a reading that is at most maxAge old, from the cache or from fetch.
func (m *cachedRead[T]) get(ctx context.Context, c *Client, op Op, maxAge time.Duration, fetch func(context.Context) (T, error)) (reading[T], error) {
	fresh := func() *reading[T] {
		if r := m.last.Load(); r != nil && c.now().Sub(r.At) < maxAge {
			return r
		}
		return nil
	}
	if r := fresh(); r != nil {
		return *r, nil
	}
	r, err := m.flight.do(ctx, c, func(ctx context.Context) (reading[T], error) {
		if r := fresh(); r != nil {
			return *r, nil // the previous fetch finished in the meantime
		}
		r := reading[T]{At: c.now()}
		var err error
		if r.Value, err = fetch(ctx); err == nil {
			m.last.Store(&r)
		}
		return r, err
	})
	if errors.Is(err, errDropped) {
		err = &Error{Op: op, Class: Dropped}
	}
	return r, err
}

func (c *Client) devices(ctx context.Context, tags ...string) ([]Device, error) {
	return list(ctx, c, ListDevices, "devices", func(ctx context.Context, api *tailscale.Client) ([]tailscale.Device, error) {
		var options []tailscale.ListDevicesOptions
		if len(tags) > 0 {
			options = append(options, tailscale.WithFilter("tags", tags))
		}
		return api.Devices().List(ctx, options...)
	}, device)
}

func device(d *tailscale.Device) (Device, error) {
	if d.NodeID == "" {
		return Device{}, errors.New("a device without an ID")
	}
	out := Device{ID: d.NodeID, Name: strings.TrimSuffix(d.Name, "."), Hostname: d.Hostname, Tags: d.Tags, External: d.IsExternal,
		Ephemeral: d.IsEphemeral, Connected: d.ConnectedToControl, Created: d.Created.Time}
	if d.LastSeen != nil {
		out.LastSeen = d.LastSeen.Time
	}
	var err error
	if out.Addresses, err = parseAddrs(d.Addresses); err != nil {
		return Device{}, fmt.Errorf("device %s: %w", d.NodeID, err)
	}
	return out, nil
}

func (c *Client) services(ctx context.Context) ([]Service, error) {
	return list(ctx, c, ListServices, "vipServices", func(ctx context.Context, api *tailscale.Client) ([]tailscale.VIPService, error) {
		return api.VIPServices().List(ctx)
	}, service)
}

func service(s *tailscale.VIPService) (Service, error) {
	if s.Name == "" {
		return Service{}, errors.New("a service without a name")
	}
	out := Service{Name: s.Name, Comment: s.Comment, Annotations: maps.Clone(s.Annotations), Ports: s.Ports, Tags: s.Tags}
	var err error
	if out.Addrs, err = parseAddrs(s.Addrs); err != nil {
		return Service{}, fmt.Errorf("service %s: %w", s.Name, err)
	}
	return out, nil
}

func parseAddrs(texts []string) (addrs []netip.Addr, err error) {
	for _, text := range texts {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, a)
	}
	return addrs, nil
}

// list is like request, for a list under a JSON key, whose elements it converts. It rejects a response without that key, such as
// {}. Such a response would look like an empty list, and an empty list causes deletions.
func list[From, To any](ctx context.Context, c *Client, op Op, key string, read func(context.Context, *tailscale.Client) ([]From, error), convert func(*From) (To, error)) ([]To, error) {
	return request(ctx, c, op, func(ctx context.Context, api *tailscale.Client) ([]To, error) {
		all, err := read(ctx, api)
		if err != nil {
			return nil, err
		}
		out := make([]To, len(all))
		for i := range all {
			if out[i], err = convert(&all[i]); err != nil {
				return nil, err
			}
		}
		if len(all) > 0 {
			return out, nil
		}
		var form map[string]json.RawMessage
		if err := json.Unmarshal(exchangeOf(api).body, &form); err != nil {
			return nil, err
		}
		if _, ok := form[key]; !ok {
			return nil, fmt.Errorf("the response has no %q", key)
		}
		return out, nil
	})
}

// tagged caches device lists by tags.
type tagged struct {
	mu     sync.Mutex
	byTags map[string]*cachedRead[[]Device]
}

const maxTagged = 64 // lists per tailnet: enough for all of its gateways

// Tagged returns the devices that have at least one of the tags exactly. The list is at most maxAge
// old and is returned with the time of its request. The API filters the devices, so the call is
// cheap for a tailnet with many devices.
func (c *Client) Tagged(ctx context.Context, maxAge time.Duration, tags ...string) ([]Device, time.Time, error) {
	tags = slices.Compact(slices.Sorted(slices.Values(tags)))
	if len(tags) == 0 {
		return nil, time.Time{}, errors.New("no tags to match")
	}
	key := strings.Join(tags, " ")
	t := &c.tagged
	t.mu.Lock()
	m := t.byTags[key]
	if m == nil {
		if len(t.byTags) >= maxTagged || t.byTags == nil {
			t.byTags = map[string]*cachedRead[[]Device]{}
		}
		m = new(cachedRead[[]Device])
		t.byTags[key] = m
	}
	t.mu.Unlock()
	r, err := m.get(ctx, c, ListDevices, maxAge, func(ctx context.Context) ([]Device, error) { return c.devices(ctx, tags...) })
	return r.Value, r.At, err
}

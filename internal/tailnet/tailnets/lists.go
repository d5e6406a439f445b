package tailnets

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
	"time"

	tailscale "tailscale.com/client/tailscale/v2"
)

// Lists are the devices and services of a tailnet as they were at one time. They
// are shared by all who ask, so nobody changes them.
type Lists struct {
	At       time.Time // when the answer was asked for
	Devices  []Device
	Services []Service
	// ServicesRefused is set when the credential may not list services: nothing is
	// known of them then, which is not the same as there being none.
	ServicesRefused *Error
}

// Device is a machine of the tailnet, or one that was shared into it.
type Device struct {
	ID        string // the stable one, such as n1CNTRL
	Name      string // with the MagicDNS suffix, without a dot at the end
	Hostname  string
	Addresses []netip.Addr
	Tags      []string
	External  bool // shared in: its name is of another tailnet
	Ephemeral bool
	Connected bool
	Created   time.Time // zero: the API does not say
	LastSeen  time.Time // zero: it is connected, or never was
}

// Service is a service with addresses of its own.
type Service struct {
	Name        string       // svc:name
	Addrs       []netip.Addr // IPv4 first
	Comment     string
	Annotations map[string]string
	Ports       []string // such as tcp:443; or do-not-validate, alone
	Tags        []string
}

// Lists returns devices and services no older than maxAge: those that are known,
// or new ones, for which all who wait share one pair of requests. The error is an
// *[Error], or the context's. What was known before stays known.
func (c *Client) Lists(ctx context.Context, maxAge time.Duration) (*Lists, error) {
	if l := c.fresh(maxAge); l != nil {
		return l, nil
	}
	return share(ctx, c, ListDevices, &c.listing, func(ctx context.Context) (*Lists, error) {
		if l := c.fresh(maxAge); l != nil {
			return l, nil // the flight before ours landed while we came
		}
		l, err := c.fetchLists(ctx)
		if err == nil {
			c.lists.Store(l)
		}
		return l, err
	})
}

// Known returns the last lists that were read, or nil.
func (c *Client) Known() *Lists { return c.lists.Load() }

func (c *Client) fresh(maxAge time.Duration) *Lists {
	if l := c.lists.Load(); l != nil && c.now().Sub(l.At) < maxAge {
		return l
	}
	return nil
}

// share is a flight whose refusal by a dropped client is an *Error.
func share[T any](ctx context.Context, c *Client, op Op, l *flight[T], f func(context.Context) (T, error)) (T, error) {
	v, err := l.do(ctx, c, f)
	if err != nil && errors.Is(err, errDropped) {
		return v, &Error{Op: op, Class: Dropped}
	}
	return v, err
}

func (c *Client) fetchLists(ctx context.Context) (*Lists, error) {
	out := &Lists{At: c.now()}
	var err error
	if out.Devices, err = c.devices(ctx); err != nil {
		return nil, err
	}
	out.Services, err = c.services(ctx)
	switch failure, _ := errors.AsType[*Error](err); {
	case err == nil:
	case failure != nil && failure.Class == NotFound: // the devices were there: the tailnet is, and lacks the feature
		out.Services = nil
	case failure != nil && failure.Class == Forbidden:
		out.ServicesRefused = failure
	default:
		return nil, err
	}
	return out, nil
}

func (c *Client) devices(ctx context.Context, tags ...string) ([]Device, error) {
	var out []Device
	err := c.list(ctx, ListDevices, "devices", func(ctx context.Context, api *tailscale.Client) (int, error) {
		var options []tailscale.ListDevicesOptions
		if len(tags) > 0 {
			options = append(options, tailscale.WithFilter("tags", tags))
		}
		all, err := api.Devices().List(ctx, options...)
		if err != nil {
			return 0, err
		}
		out = make([]Device, 0, len(all))
		for i := range all {
			d, err := device(&all[i])
			if err != nil {
				return 0, err
			}
			out = append(out, d)
		}
		return len(all), nil
	})
	return out, err
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
	for _, text := range d.Addresses {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return Device{}, fmt.Errorf("device %s: %w", d.NodeID, err)
		}
		out.Addresses = append(out.Addresses, a)
	}
	return out, nil
}

func (c *Client) services(ctx context.Context) ([]Service, error) {
	var out []Service
	err := c.list(ctx, ListServices, "vipServices", func(ctx context.Context, api *tailscale.Client) (int, error) {
		all, err := api.VIPServices().List(ctx)
		if err != nil {
			return 0, err
		}
		out = make([]Service, 0, len(all))
		for i := range all {
			s, err := service(&all[i])
			if err != nil {
				return 0, err
			}
			out = append(out, s)
		}
		return len(all), nil
	})
	return out, err
}

func service(s *tailscale.VIPService) (Service, error) {
	if s.Name == "" {
		return Service{}, errors.New("a service without a name")
	}
	out := Service{Name: s.Name, Comment: s.Comment, Annotations: maps.Clone(s.Annotations), Ports: s.Ports, Tags: s.Tags}
	for _, text := range s.Addrs {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return Service{}, fmt.Errorf("service %s: %w", s.Name, err)
		}
		out.Addrs = append(out.Addrs, a)
	}
	return out, nil
}

// list is ask for a list under a key. An answer of another form, such as {}, would
// look like a list of nothing, and nothing is what deletes.
func (c *Client) list(ctx context.Context, op Op, key string, do func(context.Context, *tailscale.Client) (int, error)) error {
	return c.ask(ctx, op, func(ctx context.Context, api *tailscale.Client) error {
		n, err := do(ctx, api)
		if err != nil || n > 0 {
			return err
		}
		var form map[string]json.RawMessage
		if err := json.Unmarshal(api.Auth.(*exchange).body, &form); err != nil {
			return err
		}
		if _, ok := form[key]; !ok {
			return fmt.Errorf("the answer has no %q", key)
		}
		return nil
	})
}

// tagged are the devices with some tags, by those.
type tagged struct {
	mu     sync.Mutex
	byTags map[string]*taggedList
}

type taggedList struct {
	flight flight[[]Device]
	at     time.Time // guarded by tagged
	known  []Device
}

const mostTagged = 64 // lists of a tailnet: as many as the tailnet's gateways may ask for, and some

// Tagged returns the devices that have at least one of the tags exactly, no older
// than maxAge. It is the API that picks them, so a tailnet of many devices and few
// that matter costs little.
func (c *Client) Tagged(ctx context.Context, maxAge time.Duration, tags ...string) ([]Device, error) {
	tags = slices.Compact(slices.Sorted(slices.Values(tags)))
	key := strings.Join(tags, " ")
	t := &c.tagged
	t.mu.Lock()
	l := t.byTags[key]
	if l == nil {
		if len(t.byTags) >= mostTagged || t.byTags == nil {
			t.byTags = map[string]*taggedList{}
		}
		l = new(taggedList)
		t.byTags[key] = l
	}
	if !l.at.IsZero() && c.now().Sub(l.at) < maxAge {
		known := l.known
		t.mu.Unlock()
		return known, nil
	}
	t.mu.Unlock()
	return share(ctx, c, ListDevices, &l.flight, func(ctx context.Context) ([]Device, error) {
		at := c.now()
		found, err := c.devices(ctx, tags...)
		if err == nil {
			t.mu.Lock()
			l.at, l.known = at, found
			t.mu.Unlock()
		}
		return found, err
	})
}

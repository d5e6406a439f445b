package groups

import (
	"context"
	"fmt"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/gateway/upkeep"
	"github.com/tailplane/tailplane/internal/relay/relaykube"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

// clearDevice takes a device that is gone out of the state Secret. What else is there
// stays: the relay logs in as the machine that it was.
func (l *look) clearDevice(ctx context.Context, ordinal int) error {
	s := l.state[ordinal]
	want := s.DeepCopy()
	for _, field := range []string{relaykube.DeviceID, relaykube.DeviceFQDN, relaykube.DeviceIPs} {
		delete(want.Data, field)
	}
	if err := l.direct.Patch(ctx, want, client.MergeFromWithOptions(s, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("clear the device of %s: %w", s.Name, err)
	}
	return nil
}

// ask asks whether devices are there that relays say they have lost.
func (l *look) ask(ctx context.Context, ordinals []int) error {
	return each(l, ordinals, func(i int) error {
		id := l.facts.Ordinals[i].Node
		_, err := l.api.Device(ctx, id)
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case err == nil:
			l.doubted[id] = true
		case isGone(err):
			l.gone[id] = true
		default:
			return err
		}
		return nil
	})
}

// dropDevices deletes devices that the status names. It looks at each before: what
// relays wrote is not trusted to name devices of others.
func (l *look) dropDevices(ctx context.Context, devices []upkeep.Device) error {
	return each(l, devices, func(d upkeep.Device) error {
		device, err := l.api.Device(ctx, d.Node)
		switch {
		case isGone(err):
		case err != nil:
			return err
		case !l.own(d, device):
			l.Log.Warn("a device is none of the group's, and stays", "group", l.group.Namespace+"/"+l.group.Name, "device", d.Node)
		default:
			if err := l.api.DeleteDevice(ctx, d.Node); err != nil {
				return err
			}
			l.Log.Info("device deleted", "group", l.group.Namespace+"/"+l.group.Name, "device", d.Node)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.dropped[d.Node] = true
		l.deleted = append(l.deleted, d.Node)
		return nil
	})
}

// own says whether a device can be the group's: it has the name that was asked for,
// and is not older than the group.
func (l *look) own(d upkeep.Device, device tsapi.Device) bool {
	hostname := l.hostname(d.Ordinal)
	for _, had := range l.group.Status.Devices {
		if had.NodeID == d.Node && had.Hostname != "" {
			hostname = had.Hostname
		}
	}
	const skew = 5 * time.Minute // between our clock and Tailscale's
	return !device.External && strings.EqualFold(device.Hostname, hostname) &&
		(device.Created.IsZero() || !device.Created.Before(l.group.CreationTimestamp.Add(-skew)))
}

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

// clearDevice removes a deleted device from the state Secret. The other fields stay, and the relay
// logs in with its existing machine key.
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

// ask queries the API for devices that relays report as lost.
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

// dropDevices deletes devices in the status. It checks each device first, because relays wrote
// their IDs and must not be able to name other devices.
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

// own reports whether a device can belong to the group: it has the requested hostname and is not
// older than the group.
func (l *look) own(d upkeep.Device, device tsapi.Device) bool {
	hostname := l.hostname(d.Ordinal)
	for _, had := range l.group.Status.Devices {
		if had.NodeID == d.Node && had.Hostname != "" {
			hostname = had.Hostname
		}
	}
	const skew = 5 * time.Minute // tolerance between the local clock and Tailscale's
	return !device.External && strings.EqualFold(device.Hostname, hostname) &&
		(device.Created.IsZero() || !device.Created.Before(l.group.CreationTimestamp.Add(-skew)))
}

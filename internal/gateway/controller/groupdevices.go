package controller

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/relay/config"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

// clearDevice removes a deleted device from the state Secret. The other fields stay, and the relay
// logs in with its existing machine key.
func (l *groupReconciliation) clearDevice(ctx context.Context, ordinal int) error {
	s := l.state[ordinal]
	want := s.DeepCopy()
	for _, field := range []string{config.DeviceID, config.DeviceFQDN, config.DeviceIPs} {
		delete(want.Data, field)
	}
	if err := l.direct.Patch(ctx, want, lockedPatch(s)); err != nil {
		return fmt.Errorf("clear the device of %s: %w", s.Name, err)
	}
	return nil
}

// checkDevices queries the API for devices that relays report as lost.
func (l *groupReconciliation) checkDevices(ctx context.Context, ordinals []int) error {
	return forEach(l, ordinals, func(i int) error {
		id := l.facts.Ordinals[i].Node
		_, err := l.api.Device(ctx, id)
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case err == nil:
			l.existing[id] = true
		case isNotFound(err):
			l.gone[id] = true
		default:
			return err
		}
		return nil
	})
}

// deleteDevices deletes devices in the status. It checks each device first, because relays wrote
// their IDs and must not be able to name other devices.
func (l *groupReconciliation) deleteDevices(ctx context.Context, devices []gateway.RecordedDevice) error {
	return forEach(l, devices, func(d gateway.RecordedDevice) error {
		device, err := l.api.Device(ctx, d.Node)
		switch {
		case isNotFound(err):
		case err != nil:
			return err
		case !l.ownsDevice(d, device):
			l.Log.Warn("not deleting a device that does not belong to the group", "group", l.group.Namespace+"/"+l.group.Name, "device", d.Node)
		default:
			if err := l.api.DeleteDevice(ctx, d.Node); err != nil {
				return err
			}
			l.Log.Info("device deleted", "group", l.group.Namespace+"/"+l.group.Name, "device", d.Node)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.deletedDevices[d.Node] = true
		l.deleted = append(l.deleted, d.Node)
		return nil
	})
}

// ownsDevice reports whether a device can belong to the group: it has the requested hostname and is not
// older than the group.
func (l *groupReconciliation) ownsDevice(d gateway.RecordedDevice, device tsapi.Device) bool {
	hostname := l.hostname(d.Ordinal)
	for _, previous := range l.group.Status.Devices {
		if previous.NodeID == d.Node && previous.Hostname != "" {
			hostname = previous.Hostname
		}
	}
	const skew = 5 * time.Minute // tolerance between the local clock and Tailscale's
	return !device.External && strings.EqualFold(device.Hostname, hostname) &&
		(device.Created.IsZero() || !device.Created.Before(l.group.CreationTimestamp.Add(-skew)))
}

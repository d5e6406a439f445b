package gateway

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

// NextGroupStep decides the next lifecycle action of a group of relays. An action creates an auth
// key for a replica, or deletes a key, Secret, device or pod, in a safe order. It follows law 9: an
// object at Tailscale is recorded before it is created, and every wait has a wake time that follows
// from stored data.

const (
	// AuthKeyLifetime is the lifetime of an auth key.
	AuthKeyLifetime = time.Hour

	// AuthKeyPause is the minimum time between two keys for one replica.
	AuthKeyPause = 30 * time.Second

	// UnusedGroupGrace is how long a group that the operator created remains after its last user is gone.
	UnusedGroupGrace = 10 * time.Minute

	// deviceCheckPause is the time before a device is queried again that a relay reports as lost
	// although it exists.
	deviceCheckPause = time.Minute
)

// An AuthKeyState is the state of the auth key of a replica, as recorded in its config Secret.
//
//	none --> Pending --> Stored --> used (ID and Until remain and limit the next key)
type AuthKeyState struct {
	Pending bool   // a key with unknown ID may exist
	ID      string // ID of the last key
	Stored  bool   // the key is in the Secret
	Until   time.Time
}

// mayBeValid reports whether a valid key may exist.
func (k AuthKeyState) mayBeValid(now time.Time) bool {
	return (k.Pending || k.Stored) && now.Before(k.Until)
}

// A RelayReplica is everything known about one ordinal.
type RelayReplica struct {
	Pod   string // UID of the pod; "" if there is none
	Ready bool   // the pod is ready

	State, Config bool // the Secrets exist

	// From the state Secret.
	Node      string // stable ID of the device
	WriterPod string // UID of the pod that wrote the Secret last
	Joined    bool   // the device's keys are stored too
	Reissue   string // the relay needs a new key: ID of the failed key, or another value

	Key AuthKeyState

	// DeviceGone and DeviceExists are the API's answers about Node in this reconcile: the device does not
	// exist, or it exists.
	DeviceGone, DeviceExists bool
}

// A RecordedDevice is a device recorded in the status.
type RecordedDevice struct {
	Ordinal int
	Node    string
}

// GroupFacts are everything known about a group.
type GroupFacts struct {
	Deleting, HasFinalizer bool // HasFinalizer: the finalizer is set
	SkipRemote             bool // an administrator allows removal without cleanup at Tailscale
	Accepted               bool

	Replicas    int  // desired number
	SetExists   bool // the StatefulSet exists
	SetDeleting bool
	SetReplicas int // replicas in the spec of the StatefulSet

	Ordinals map[int]RelayReplica // ordinals that have or need any object
	Recorded []RecordedDevice

	HasClient bool      // there is a client for the tailnet
	NotBefore time.Time // do not call the API before this time
}

// A GroupAction is the next action.
type GroupAction string

// The actions. After each action except GroupWait, NextGroupStep must be called again.
const (
	GroupWait              GroupAction = "rest"
	GroupAddFinalizer      GroupAction = "hold"         // add the finalizer
	GroupRecordDevices     GroupAction = "record"       // write all devices into the status
	GroupDeleteSet         GroupAction = "end set"      // delete the StatefulSet after its pods
	GroupRestartPods       GroupAction = "restart"      // delete the pods of Ordinals
	GroupRemoveUsedKeys    GroupAction = "clean"        // remove used keys from the config Secrets
	GroupDeletePendingKeys GroupAction = "tidy"         // find keys that may have been created, and delete them
	GroupCheckDevices      GroupAction = "ask"          // query the API for the devices of Ordinals
	GroupIssueKeys         GroupAction = "mint"         // create keys in one batch
	GroupDeleteKeys        GroupAction = "drop keys"    // delete keys that are no longer needed
	GroupDeleteSecrets     GroupAction = "drop secrets" // delete both Secrets of each ordinal
	GroupDeleteDevices     GroupAction = "drop devices"
	GroupRemoveFinalizer   GroupAction = "release" // remove the finalizer
)

// A GroupStep is an action and its objects. For GroupWait, Wake is the time of the next reconcile (zero: on
// change). Blocked means that an object at Tailscale must be deleted but the API cannot be called
// now.
type GroupStep struct {
	Action   GroupAction
	Ordinals []int
	Devices  []RecordedDevice
	Wake     time.Time
	Blocked  bool
}

// NextGroupStep returns the next action for a group.
func NextGroupStep(f GroupFacts, now time.Time) GroupStep {
	d := groupDecision{f, now, GroupStep{Action: GroupWait}}
	switch {
	case f.Deleting:
		d.finalize()
	case f.Accepted:
		d.maintain()
	}
	return d.GroupStep
}

type groupDecision struct {
	GroupFacts
	now time.Time
	GroupStep
}

// choose selects the ordinals for which is returns true and, if there are any, makes action the next action for
// them.
func (d *groupDecision) choose(action GroupAction, is func(i int, r RelayReplica) bool) bool {
	of := slices.DeleteFunc(slices.Sorted(maps.Keys(d.GroupFacts.Ordinals)), func(i int) bool { return !is(i, d.GroupFacts.Ordinals[i]) })
	if len(of) == 0 {
		return false
	}
	d.GroupStep = GroupStep{Action: action, Ordinals: of}
	return true
}

// chooseRemote is like choose for an action that calls the API. If the API cannot be called now, the action
// waits and the next independent action is considered.
func (d *groupDecision) chooseRemote(action GroupAction, is func(i int, r RelayReplica) bool) bool {
	before := d.GroupStep
	if !d.choose(action, is) {
		return false
	}
	if d.mayCallAPI() {
		return true
	}
	before.Blocked = before.Blocked || action == GroupDeletePendingKeys || action == GroupDeleteKeys
	d.GroupStep = before
	d.requeueAt(d.NotBefore)
	return false
}

func (d *groupDecision) mayCallAPI() bool { return d.HasClient && !d.now.Before(d.NotBefore) }

// requeueAt sets the latest time of the next reconcile.
func (d *groupDecision) requeueAt(t time.Time) {
	if !t.IsZero() && t.After(d.now) && (d.Wake.IsZero() || t.Before(d.Wake)) {
		d.Wake = t
	}
}

func (d *groupDecision) recorded(i int, node string) bool {
	return slices.Contains(d.GroupFacts.Recorded, RecordedDevice{i, node})
}

// maintain handles a group that must exist.
func (d *groupDecision) maintain() {
	if !d.HasFinalizer {
		if d.Replicas > 0 || len(d.GroupFacts.Ordinals) > 0 {
			d.GroupStep = GroupStep{Action: GroupAddFinalizer}
		}
		return
	}
	desired := func(i int) bool { return i < d.Replicas }
	// leaves reports that the ordinal is surplus and that its pod will not be started again.
	leaves := func(i int, r RelayReplica) bool {
		return !desired(i) && r.Pod == "" && (!d.SetExists || d.SetReplicas <= i)
	}
	now := d.now
	if d.choose(GroupRestartPods, func(i int, r RelayReplica) bool { // the relay keeps its state only in memory and will not write it again
		return desired(i) && r.Pod != "" && r.Ready && r.State && r.WriterPod == ""
	}) || d.choose(GroupRemoveUsedKeys, func(i int, r RelayReplica) bool {
		return desired(i) && r.Key.Stored && r.Joined && r.Node != "" && r.Reissue == ""
	}) || d.choose(GroupRecordDevices, func(i int, r RelayReplica) bool {
		return leaves(i, r) && r.Node != "" && !d.recorded(i, r.Node)
	}) || d.chooseRemote(GroupDeletePendingKeys, func(i int, r RelayReplica) bool {
		return r.Key.Pending && r.Key.mayBeValid(now) && (desired(i) || leaves(i, r))
	}) || d.chooseRemote(GroupCheckDevices, func(i int, r RelayReplica) bool {
		return desired(i) && d.reissueDue(r) && r.Node != "" && !r.DeviceGone && !r.DeviceExists
	}) || d.chooseRemote(GroupIssueKeys, func(i int, r RelayReplica) bool {
		return desired(i) && d.needsKey(r)
	}) || d.chooseRemote(GroupDeleteKeys, func(i int, r RelayReplica) bool {
		return leaves(i, r) && r.Key.Stored && r.Key.mayBeValid(now)
	}) || d.choose(GroupDeleteSecrets, func(i int, r RelayReplica) bool {
		return leaves(i, r) && (r.State || r.Config) && !r.Key.mayBeValid(now)
	}) || d.deleteDevices(func(v RecordedDevice) bool {
		r := d.GroupFacts.Ordinals[v.Ordinal]
		if desired(v.Ordinal) {
			return r.Node != "" && r.Node != v.Node // another device replaced it
		}
		return leaves(v.Ordinal, r) && !r.State
	}) {
		return
	}
	for i, r := range d.GroupFacts.Ordinals {
		if r.Key.mayBeValid(now) && (!desired(i) || r.Pod != "") {
			d.requeueAt(r.Key.Until)
		}
		if desired(i) && r.Reissue != "" {
			d.requeueAt(d.pauseEnd(r))
			if r.DeviceExists {
				d.requeueAt(now.Add(deviceCheckPause))
			}
		}
		if desired(i) && r.Node == "" && r.Pod != "" {
			d.requeueAt(d.pauseEnd(r))
		}
	}
}

// pauseEnd returns the end of the pause after the last key.
func (d *groupDecision) pauseEnd(r RelayReplica) time.Time {
	if r.Key.Until.IsZero() {
		return time.Time{}
	}
	return r.Key.Until.Add(AuthKeyPause - AuthKeyLifetime)
}

// reissueDue reports whether the relay requests a key and can get one now. Either no key is valid, or the
// valid key is the one that failed.
func (d *groupDecision) reissueDue(r RelayReplica) bool {
	return r.Reissue != "" && r.State && r.Config && !r.Key.Pending && !d.now.Before(d.pauseEnd(r)) &&
		(!r.Key.mayBeValid(d.now) || keyFailed(r.Reissue, r.Key.ID))
}

// keyFailed reports whether the relay's request names the key with this ID as failed. Tailplane's
// relay reports the ID; Tailscale's image reports the key itself.
func keyFailed(reissue, id string) bool {
	return id != "" && (reissue == id || strings.HasPrefix(reissue, "tskey-auth-"+id+"-"))
}

// needsKey reports whether a replica gets a key now.
func (d *groupDecision) needsKey(r RelayReplica) bool {
	switch {
	case !r.State || !r.Config || r.Key.Pending && r.Key.mayBeValid(d.now):
		return false
	case r.Reissue != "":
		return d.reissueDue(r) && (r.Node == "" || r.DeviceGone)
	case r.Node != "" || r.Key.mayBeValid(d.now):
		return false
	}
	// A pod that is never started gets one key, not one every hour.
	return r.Key.Until.IsZero() || r.Pod != "" && !d.now.Before(d.pauseEnd(r))
}

func (d *groupDecision) deleteDevices(is func(RecordedDevice) bool) bool {
	of := slices.DeleteFunc(slices.Clone(d.GroupFacts.Recorded), func(v RecordedDevice) bool { return !is(v) })
	if len(of) == 0 {
		return false
	}
	if !d.mayCallAPI() {
		d.Blocked = true
		d.requeueAt(d.NotBefore)
		return false
	}
	slices.SortFunc(of, func(a, b RecordedDevice) int {
		return cmp.Or(cmp.Compare(a.Ordinal, b.Ordinal), cmp.Compare(a.Node, b.Node))
	})
	d.GroupStep = GroupStep{Action: GroupDeleteDevices, Devices: of}
	return true
}

// finalize handles a group that is being deleted: first pods, then Secrets, then devices. Each
// reconcile reads the devices again, so a device that appeared while the pods ended is recorded
// too.
func (d *groupDecision) finalize() {
	if !d.HasFinalizer {
		return
	}
	now := d.now
	if d.choose(GroupRecordDevices, func(i int, r RelayReplica) bool { return r.Node != "" && !d.recorded(i, r.Node) }) {
		return
	}
	if d.SetExists {
		if !d.SetDeleting {
			d.GroupStep = GroupStep{Action: GroupDeleteSet}
		}
		return
	}
	if d.choose(GroupWait, func(_ int, r RelayReplica) bool { return r.Pod != "" }) {
		return
	}
	if !d.SkipRemote {
		if d.chooseRemote(GroupDeletePendingKeys, func(_ int, r RelayReplica) bool { return r.Key.Pending && r.Key.mayBeValid(now) }) ||
			d.chooseRemote(GroupDeleteKeys, func(_ int, r RelayReplica) bool { return r.Key.Stored && r.Key.mayBeValid(now) }) {
			return
		}
		if d.Blocked { // the key expires by itself
			for _, r := range d.GroupFacts.Ordinals {
				if r.Key.mayBeValid(now) {
					d.requeueAt(r.Key.Until)
				}
			}
			return
		}
	}
	if d.choose(GroupDeleteSecrets, func(_ int, r RelayReplica) bool { return r.State || r.Config }) {
		return
	}
	if !d.SkipRemote && (d.deleteDevices(func(RecordedDevice) bool { return true }) || d.Blocked) {
		return
	}
	d.GroupStep = GroupStep{Action: GroupRemoveFinalizer}
}

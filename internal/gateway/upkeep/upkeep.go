// Package upkeep decides the next lifecycle action of a group of relays. An action creates an auth
// key for a replica, or deletes a key, Secret, device or pod, in a safe order. It follows law 9:
// an object at Tailscale is recorded before it is created, and every wait has a wake time that
// follows from stored data.
//
// The package is pure: no clock, no I/O.
package upkeep

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	// KeyLife is the lifetime of an auth key.
	KeyLife = time.Hour

	// ReissuePause is the minimum time between two keys for one replica.
	ReissuePause = 30 * time.Second

	// Grace is how long a group that the operator created remains after its last user is gone.
	Grace = 10 * time.Minute

	// doubtPause is the time before a device is queried again that a relay reports as lost
	// although it exists.
	doubtPause = time.Minute
)

// A Key is the state of the auth key of a replica, as recorded in its config Secret.
//
//	none --> Begun --> AtHand --> used (ID and Until remain and limit the next key)
type Key struct {
	Begun  bool   // a key with unknown ID may exist
	ID     string // ID of the last key
	AtHand bool   // the key is in the Secret
	Until  time.Time
}

// open reports whether a valid key may exist.
func (k Key) open(now time.Time) bool { return (k.Begun || k.AtHand) && now.Before(k.Until) }

// A Replica is everything known about one ordinal.
type Replica struct {
	Pod   string // UID of the pod; "" if there is none
	Ready bool   // the pod is ready

	State, Config bool // the Secrets exist

	// From the state Secret.
	Node    string // stable ID of the device
	RanIn   string // UID of the pod that wrote the Secret last
	Joined  bool   // the device's keys are stored too
	Reissue string // the relay needs a new key: ID of the failed key, or another value

	Key Key

	// Gone and Doubted are the API's answers about Node in this reconcile: the device does not
	// exist, or it exists.
	Gone, Doubted bool
}

// A Device is a device recorded in the status.
type Device struct {
	Ordinal int
	Node    string
}

// Facts are everything known about a group.
type Facts struct {
	Deleting, Held bool // Held: the finalizer is set
	SkipRemote     bool // an administrator allows removal without cleanup at Tailscale
	Accepted       bool

	Replicas    int  // desired number
	Set         bool // the StatefulSet exists
	SetEnding   bool
	SetReplicas int // replicas in the spec of the StatefulSet

	Ordinals map[int]Replica // ordinals that have or need any object
	Recorded []Device

	API   bool      // there is a client for the tailnet
	After time.Time // do not call the API before this time
}

// A Deed is the next action.
type Deed string

// The actions. After each action except Rest, Next must be called again.
const (
	Rest        Deed = "rest"
	Hold        Deed = "hold"         // add the finalizer
	Record      Deed = "record"       // write all devices into the status
	EndSet      Deed = "end set"      // delete the StatefulSet after its pods
	Restart     Deed = "restart"      // delete the pods of Ordinals
	Clean       Deed = "clean"        // remove used keys from the config Secrets
	Tidy        Deed = "tidy"         // find keys that may have been created, and delete them
	Ask         Deed = "ask"          // query the API for the devices of Ordinals
	Mint        Deed = "mint"         // create keys in one batch
	DropKeys    Deed = "drop keys"    // delete keys that are no longer needed
	DropSecrets Deed = "drop secrets" // delete both Secrets of each ordinal
	DropDevices Deed = "drop devices"
	Release     Deed = "release" // remove the finalizer
)

// A Step is an action and its objects. For Rest, Wake is the time of the next reconcile (zero: on
// change). Blocked means that an object at Tailscale must be deleted but the API cannot be called
// now.
type Step struct {
	Deed     Deed
	Ordinals []int
	Devices  []Device
	Wake     time.Time
	Blocked  bool
}

// Next returns the next action for a group.
func Next(f Facts, now time.Time) Step {
	d := decision{f, now, Step{Deed: Rest}}
	switch {
	case f.Deleting:
		d.end()
	case f.Accepted:
		d.keep()
	}
	return d.Step
}

type decision struct {
	Facts
	now time.Time
	Step
}

// do selects the ordinals that satisfy is and, if there are any, makes deed the next action for
// them.
func (d *decision) do(deed Deed, is func(i int, r Replica) bool) bool {
	var of []int
	for _, i := range slices.Sorted(maps.Keys(d.Facts.Ordinals)) {
		if is(i, d.Facts.Ordinals[i]) {
			of = append(of, i)
		}
	}
	if len(of) == 0 {
		return false
	}
	d.Step = Step{Deed: deed, Ordinals: of}
	return true
}

// remote is like do for an action that calls the API. If the API cannot be called now, the action
// waits and the next independent action is considered.
func (d *decision) remote(deed Deed, is func(i int, r Replica) bool) bool {
	before := d.Step
	if !d.do(deed, is) {
		return false
	}
	if d.asks() {
		return true
	}
	before.Blocked = before.Blocked || deed == Tidy || deed == DropKeys
	d.Step = before
	d.wait(d.After)
	return false
}

func (d *decision) asks() bool { return d.API && !d.now.Before(d.After) }

// wait sets the latest time of the next reconcile.
func (d *decision) wait(t time.Time) {
	if !t.IsZero() && t.After(d.now) && (d.Wake.IsZero() || t.Before(d.Wake)) {
		d.Wake = t
	}
}

func (d *decision) recorded(i int, node string) bool {
	return slices.Contains(d.Facts.Recorded, Device{i, node})
}

// keep handles a group that must exist.
func (d *decision) keep() {
	if !d.Held {
		if d.Replicas > 0 || len(d.Facts.Ordinals) > 0 {
			d.Step = Step{Deed: Hold}
		}
		return
	}
	wished := func(i int) bool { return i < d.Replicas }
	// leaves reports that the ordinal is surplus and that its pod will not be started again.
	leaves := func(i int, r Replica) bool { return !wished(i) && r.Pod == "" && (!d.Set || d.SetReplicas <= i) }
	now := d.now
	if d.do(Restart, func(i int, r Replica) bool { // the relay keeps its state only in memory and will not write it again
		return wished(i) && r.Pod != "" && r.Ready && r.State && r.RanIn == ""
	}) || d.do(Clean, func(i int, r Replica) bool {
		return wished(i) && r.Key.AtHand && r.Joined && r.Node != "" && r.Reissue == ""
	}) || d.do(Record, func(i int, r Replica) bool {
		return leaves(i, r) && r.Node != "" && !d.recorded(i, r.Node)
	}) || d.remote(Tidy, func(i int, r Replica) bool {
		return r.Key.Begun && r.Key.open(now) && (wished(i) || leaves(i, r))
	}) || d.remote(Ask, func(i int, r Replica) bool {
		return wished(i) && d.due(r) && r.Node != "" && !r.Gone && !r.Doubted
	}) || d.remote(Mint, func(i int, r Replica) bool {
		return wished(i) && d.needs(r)
	}) || d.remote(DropKeys, func(i int, r Replica) bool {
		return leaves(i, r) && r.Key.AtHand && r.Key.open(now)
	}) || d.do(DropSecrets, func(i int, r Replica) bool {
		return leaves(i, r) && (r.State || r.Config) && !r.Key.open(now)
	}) || d.dropDevices(func(v Device) bool {
		r := d.Facts.Ordinals[v.Ordinal]
		if wished(v.Ordinal) {
			return r.Node != "" && r.Node != v.Node // another device replaced it
		}
		return leaves(v.Ordinal, r) && !r.State
	}) {
		return
	}
	for i, r := range d.Facts.Ordinals {
		if r.Key.open(now) && (!wished(i) || r.Pod != "") {
			d.wait(r.Key.Until)
		}
		if wished(i) && r.Reissue != "" {
			d.wait(d.paused(r))
			if r.Doubted {
				d.wait(now.Add(doubtPause))
			}
		}
		if wished(i) && r.Node == "" && r.Pod != "" {
			d.wait(d.paused(r))
		}
	}
}

// paused returns the end of the pause after the last key.
func (d *decision) paused(r Replica) time.Time {
	if r.Key.Until.IsZero() {
		return time.Time{}
	}
	return r.Key.Until.Add(ReissuePause - KeyLife)
}

// due reports whether the relay requests a key and can get one now. Either no key is valid, or the
// valid key is the one that failed.
func (d *decision) due(r Replica) bool {
	return r.Reissue != "" && r.State && r.Config && !r.Key.Begun && !d.now.Before(d.paused(r)) &&
		(!r.Key.open(d.now) || Failed(r.Reissue, r.Key.ID))
}

// Failed reports whether the relay's request names the key with this ID as failed. Tailplane's
// relay reports the ID; Tailscale's image reports the key itself.
func Failed(reissue, id string) bool {
	return id != "" && (reissue == id || strings.HasPrefix(reissue, "tskey-auth-"+id+"-"))
}

// needs reports whether a replica gets a key now.
func (d *decision) needs(r Replica) bool {
	switch {
	case !r.State || !r.Config || r.Key.Begun && r.Key.open(d.now):
		return false
	case r.Reissue != "":
		return d.due(r) && (r.Node == "" || r.Gone)
	case r.Node != "" || r.Key.open(d.now):
		return false
	}
	// A pod that is never started gets one key, not one every hour.
	return r.Key.Until.IsZero() || r.Pod != "" && !d.now.Before(d.paused(r))
}

func (d *decision) dropDevices(is func(Device) bool) bool {
	var of []Device
	for _, v := range d.Facts.Recorded {
		if is(v) {
			of = append(of, v)
		}
	}
	if len(of) == 0 {
		return false
	}
	if !d.asks() {
		d.Blocked = true
		d.wait(d.After)
		return false
	}
	slices.SortFunc(of, func(a, b Device) int { return cmp.Or(cmp.Compare(a.Ordinal, b.Ordinal), cmp.Compare(a.Node, b.Node)) })
	d.Step = Step{Deed: DropDevices, Devices: of}
	return true
}

// end handles a group that is being deleted: first pods, then Secrets, then devices. Each
// reconcile reads the devices again, so a device that appeared while the pods ended is recorded
// too.
func (d *decision) end() {
	if !d.Held {
		return
	}
	now := d.now
	if d.do(Record, func(i int, r Replica) bool { return r.Node != "" && !d.recorded(i, r.Node) }) {
		return
	}
	if d.Set {
		if !d.SetEnding {
			d.Step = Step{Deed: EndSet}
		}
		return
	}
	if d.do(Rest, func(_ int, r Replica) bool { return r.Pod != "" }) {
		return
	}
	if !d.SkipRemote {
		if d.remote(Tidy, func(_ int, r Replica) bool { return r.Key.Begun && r.Key.open(now) }) ||
			d.remote(DropKeys, func(_ int, r Replica) bool { return r.Key.AtHand && r.Key.open(now) }) {
			return
		}
		if d.Blocked { // the key expires by itself
			for _, r := range d.Facts.Ordinals {
				if r.Key.open(now) {
					d.wait(r.Key.Until)
				}
			}
			return
		}
	}
	if d.do(DropSecrets, func(_ int, r Replica) bool { return r.State || r.Config }) {
		return
	}
	if !d.SkipRemote && (d.dropDevices(func(Device) bool { return true }) || d.Blocked) {
		return
	}
	d.Step = Step{Deed: Release}
}

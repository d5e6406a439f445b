package tailnettest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// deviceJSON is a node as the API shows it.
type deviceJSON struct {
	Addresses                 []string   `json:"addresses"`
	ID                        string     `json:"id"` // the legacy number, as text
	NodeID                    string     `json:"nodeId"`
	Name                      string     `json:"name"` // with the MagicDNS suffix
	Hostname                  string     `json:"hostname"`
	User                      string     `json:"user"`
	Tags                      []string   `json:"tags,omitempty"`
	OS                        string     `json:"os"`
	ClientVersion             string     `json:"clientVersion"`
	Created                   time.Time  `json:"created"`
	Expires                   time.Time  `json:"expires"`
	LastSeen                  *time.Time `json:"lastSeen,omitempty"` // absent while connected
	Authorized                bool       `json:"authorized"`
	IsEphemeral               bool       `json:"isEphemeral"`
	IsExternal                bool       `json:"isExternal"`
	ConnectedToControl        bool       `json:"connectedToControl"`
	KeyExpiryDisabled         bool       `json:"keyExpiryDisabled"`
	UpdateAvailable           bool       `json:"updateAvailable"`
	BlocksIncomingConnections bool       `json:"blocksIncomingConnections"`
	MachineKey                string     `json:"machineKey"`
	NodeKey                   string     `json:"nodeKey"`
	TailnetLockError          string     `json:"tailnetLockError"`
	TailnetLockKey            string     `json:"tailnetLockKey"`

	*deviceAll // with fields=all
}

type deviceAll struct {
	AdvertisedRoutes []string `json:"advertisedRoutes"`
	EnabledRoutes    []string `json:"enabledRoutes"`
	SSHEnabled       bool     `json:"sshEnabled"`
}

func (a *API) deviceRoutes() []route {
	return []route{
		{"GET /tailnet/{tailnet}/devices", "devices:core", a.listDevices},
		{"GET /device/{id}", "devices:core", a.getDevice},
		{"DELETE /device/{id}", "devices:core", a.deleteDevice},
		{"POST /device/{id}/authorized", "devices:core", a.authorizeDevice},
		{"POST /device/{id}/tags", "devices:core", a.tagDevice},
		{"POST /device/{id}/name", "devices:core", a.nameDevice},
		{"POST /device/{id}/key", "devices:core", a.setDeviceKey},
	}
}

func (c *control) deviceLocked(n *node, all bool) *deviceJSON {
	d := &deviceJSON{
		Addresses: addrStrings(n.addrs), ID: strconv.FormatInt(int64(n.id), 10), NodeID: string(n.stable),
		Name: c.fqdn(n), Hostname: n.hi.Hostname, User: c.profileLocked(n).LoginName, Tags: n.tags, OS: n.hi.OS,
		ClientVersion: n.hi.IPNVersion, Created: n.created.UTC(), Expires: n.expiry.UTC(),
		Authorized: true, IsEphemeral: n.ephemeral, IsExternal: n.sharee, ConnectedToControl: n.streams > 0,
		KeyExpiryDisabled: n.expiry.IsZero(), BlocksIncomingConnections: n.hi.ShieldsUp,
		MachineKey: n.machine.String(), NodeKey: n.key.String(),
	}
	if n.streams == 0 && !n.lastSeen.IsZero() {
		d.LastSeen = new(n.lastSeen.UTC())
	}
	if all {
		d.deviceAll = &deviceAll{AdvertisedRoutes: []string{}, EnabledRoutes: []string{}}
		for _, r := range n.hi.RoutableIPs {
			d.AdvertisedRoutes = append(d.AdvertisedRoutes, r.String())
		}
		for _, r := range c.routesLocked(n) {
			d.EnabledRoutes = append(d.EnabledRoutes, r.String())
		}
	}
	return d
}

func (a *API) listDevices(c *call) (any, error) {
	q := c.URL.Query()
	all := q.Get("fields") == "all"
	q.Del("fields")
	ctl := a.net.control
	ctl.mu.Lock()
	defer ctl.mu.Unlock()
	list := []*deviceJSON{}
	for _, n := range ctl.sortedLocked() {
		d := ctl.deviceLocked(n, all)
		ok, err := d.passes(q)
		if err != nil {
			return nil, err
		}
		if ok {
			list = append(list, d)
		}
	}
	return map[string]any{"devices": list}, nil
}

// passes applies filters: the name of a property, and the values that it may have.
func (d *deviceJSON) passes(filters map[string][]string) (bool, error) {
	if len(filters) == 0 {
		return true, nil
	}
	b, err := json.Marshal(d)
	if err != nil {
		return false, err
	}
	var props map[string]any
	if err := json.Unmarshal(b, &props); err != nil {
		return false, err
	}
	for name, wanted := range filters {
		have, known := props[name]
		if !known && name != "tags" {
			return false, badRequest("no filter %q", name)
		}
		values, ok := have.([]any)
		if !ok {
			values = []any{have}
		}
		if !slices.ContainsFunc(values, func(v any) bool { return slices.Contains(wanted, fmt.Sprint(v)) }) {
			return false, nil
		}
	}
	return true, nil
}

// nodeLockedByID returns the device by either of its IDs.
func (c *control) nodeLockedByID(id string) *node {
	for _, n := range c.nodes {
		if string(n.stable) == id || strconv.FormatInt(int64(n.id), 10) == id {
			return n
		}
	}
	return nil
}

func (a *API) getDevice(c *call) (any, error) {
	ctl := a.net.control
	ctl.mu.Lock()
	defer ctl.mu.Unlock()
	n := ctl.nodeLockedByID(c.PathValue("id"))
	if n == nil {
		return nil, notFound("device")
	}
	return ctl.deviceLocked(n, c.URL.Query().Get("fields") == "all"), nil
}

// changeDevice runs f on a device of this tailnet, under the lock, and tells the nodes.
func (a *API) changeDevice(c *call, f func(*control, *node) error) (any, error) {
	ctl := a.net.control
	ctl.mu.Lock()
	defer ctl.mu.Unlock()
	n := ctl.nodeLockedByID(c.PathValue("id"))
	if n == nil {
		return nil, notFound("device")
	}
	if n.sharee {
		return nil, &apiError{Status: http.StatusNotImplemented, Message: "the device is of another tailnet"}
	}
	if err := f(ctl, n); err != nil {
		return nil, err
	}
	ctl.bumpLocked()
	return empty(c.w), nil
}

func (a *API) deleteDevice(c *call) (any, error) {
	return a.changeDevice(c, func(ctl *control, n *node) error { ctl.dropLocked(n); return nil })
}

func (a *API) authorizeDevice(c *call) (any, error) {
	var req struct {
		Authorized bool `json:"authorized"`
	}
	if err := c.decode(&req); err != nil {
		return nil, err
	}
	return a.changeDevice(c, func(*control, *node) error {
		if !req.Authorized {
			return &apiError{Status: http.StatusNotImplemented, Message: "device approval is not on the testbed"}
		}
		return nil
	})
}

func (a *API) tagDevice(c *call) (any, error) {
	var req struct {
		Tags []string `json:"tags"`
	}
	if err := c.decode(&req); err != nil {
		return nil, err
	}
	if err := a.mayTag(c.token, req.Tags); err != nil {
		return nil, err
	}
	slices.Sort(req.Tags)
	return a.changeDevice(c, func(_ *control, n *node) error {
		n.tags, n.user, n.expiry = slices.Compact(req.Tags), nil, time.Time{}
		return nil
	})
}

func (a *API) nameDevice(c *call) (any, error) {
	var req struct {
		Name string `json:"name"`
	}
	if err := c.decode(&req); err != nil {
		return nil, err
	}
	return a.changeDevice(c, func(ctl *control, n *node) error {
		label := strings.TrimSuffix(req.Name, "."+ctl.suffix)
		if label == "" { // back to the host name
			label = n.hi.Hostname
		}
		if name := ctl.uniqueNameLocked(n, label); req.Name == "" || name == strings.ToLower(label) {
			n.name = name
			return nil
		}
		return badRequest("%q is no name, or another device's", req.Name)
	})
}

func (a *API) setDeviceKey(c *call) (any, error) {
	var req struct {
		KeyExpiryDisabled bool `json:"keyExpiryDisabled"`
	}
	if err := c.decode(&req); err != nil {
		return nil, err
	}
	return a.changeDevice(c, func(_ *control, n *node) error {
		switch {
		case req.KeyExpiryDisabled:
			n.expiry = time.Time{}
		case n.expiry.IsZero():
			n.expiry = time.Now().Add(personKeyLife)
		}
		return nil
	})
}

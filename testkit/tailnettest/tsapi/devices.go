package tsapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"tailscale.com/tailcfg"
)

// deviceJSON is a node in the form of the API.
type deviceJSON struct {
	Addresses                 []string   `json:"addresses"`
	ID                        string     `json:"id"` // the legacy numeric ID, as a string
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

func (d Device) json(all bool) *deviceJSON {
	out := &deviceJSON{
		Addresses: []string{}, ID: strconv.FormatInt(int64(d.ID), 10), NodeID: string(d.StableID),
		Name: strings.TrimSuffix(d.Name, "."), Hostname: d.Hostinfo.Hostname(), User: d.Login, Tags: d.Tags, OS: d.Hostinfo.OS(),
		ClientVersion: d.Hostinfo.IPNVersion(), Created: d.Created.UTC(), Expires: d.KeyExpiry.UTC(),
		Authorized: true, IsEphemeral: d.Ephemeral, IsExternal: d.Hostinfo.ShareeNode(), ConnectedToControl: d.Online != nil && *d.Online,
		KeyExpiryDisabled: d.KeyExpiry.IsZero(), BlocksIncomingConnections: d.Hostinfo.ShieldsUp(),
		MachineKey: d.Machine.String(), NodeKey: d.Key.String(),
	}
	for _, p := range d.Addresses {
		out.Addresses = append(out.Addresses, p.Addr().String())
	}
	if d.LastSeen != nil {
		out.LastSeen = new(d.LastSeen.UTC())
	}
	if all {
		out.deviceAll = &deviceAll{AdvertisedRoutes: []string{}, EnabledRoutes: []string{}}
		for _, r := range d.Hostinfo.RoutableIPs().All() {
			out.AdvertisedRoutes = append(out.AdvertisedRoutes, r.String())
		}
		for _, r := range d.PrimaryRoutes {
			out.EnabledRoutes = append(out.EnabledRoutes, r.String())
		}
	}
	return out
}

func (a *API) listDevices(c *call) (any, error) {
	q := c.URL.Query()
	all := q.Get("fields") == "all"
	q.Del("fields")
	list := []*deviceJSON{}
	for _, dev := range a.net.Devices() {
		d := dev.json(all)
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

// passes applies filters, which map property names to their allowed values.
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

// device returns the device that the path names, by either of its IDs.
func (a *API) device(c *call) (Device, error) {
	id := c.PathValue("id")
	for _, d := range a.net.Devices() {
		if string(d.StableID) == id || strconv.FormatInt(int64(d.ID), 10) == id {
			return d, nil
		}
	}
	return Device{}, notFound("device")
}

func (a *API) getDevice(c *call) (any, error) {
	d, err := a.device(c)
	if err != nil {
		return nil, err
	}
	return d.json(c.URL.Query().Get("fields") == "all"), nil
}

// changeDevice runs f on a device of this tailnet.
func (a *API) changeDevice(c *call, f func(tailcfg.StableNodeID) error) (any, error) {
	d, err := a.device(c)
	if err != nil {
		return nil, err
	}
	if d.Hostinfo.ShareeNode() {
		return nil, &apiError{Status: http.StatusNotImplemented, Message: "the device belongs to another tailnet"}
	}
	if err := f(d.StableID); err != nil {
		return nil, err
	}
	return empty(c.w), nil
}

// existed returns the error for a device that was removed in the meantime, or nil if ok.
func existed(ok bool) error {
	if !ok {
		return notFound("device")
	}
	return nil
}

func (a *API) deleteDevice(c *call) (any, error) {
	return a.changeDevice(c, func(id tailcfg.StableNodeID) error { return existed(a.net.Delete(id)) })
}

func (a *API) authorizeDevice(c *call) (any, error) {
	var req struct {
		Authorized bool `json:"authorized"`
	}
	if err := c.decode(&req); err != nil {
		return nil, err
	}
	return a.changeDevice(c, func(tailcfg.StableNodeID) error {
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
	tags := slices.Compact(req.Tags)
	return a.changeDevice(c, func(id tailcfg.StableNodeID) error { return existed(a.net.Retag(id, tags)) })
}

func (a *API) nameDevice(c *call) (any, error) {
	var req struct {
		Name string `json:"name"`
	}
	if err := c.decode(&req); err != nil {
		return nil, err
	}
	return a.changeDevice(c, func(id tailcfg.StableNodeID) error {
		if !a.net.Rename(id, req.Name) {
			return badRequest("%q is not a name, or another device has it", req.Name)
		}
		return nil
	})
}

func (a *API) setDeviceKey(c *call) (any, error) {
	var req struct {
		KeyExpiryDisabled bool `json:"keyExpiryDisabled"`
	}
	if err := c.decode(&req); err != nil {
		return nil, err
	}
	return a.changeDevice(c, func(id tailcfg.StableNodeID) error { return existed(a.net.SetKeyExpiry(id, !req.KeyExpiryDisabled)) })
}

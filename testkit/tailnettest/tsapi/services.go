package tsapi

import (
	"slices"
	"strconv"
	"strings"

	"tailscale.com/tailcfg"
)

func (a *API) serviceRoutes() []route {
	var out []route
	for _, word := range []string{"vip-services", "services"} { // both spellings are valid
		out = append(out,
			route{"GET /tailnet/{tailnet}/" + word, "services", a.listServices},
			route{"GET /tailnet/{tailnet}/" + word + "/{name}", "services", a.getService},
			route{"PUT /tailnet/{tailnet}/" + word + "/{name}", "services", a.putService},
			route{"DELETE /tailnet/{tailnet}/" + word + "/{name}", "services", a.deleteService},
			route{"GET /tailnet/{tailnet}/" + word + "/{name}/devices", "services", a.listHosts},
			route{"POST /tailnet/{tailnet}/" + word + "/{name}/device/{id}/approved", "services", a.approveHost})
	}
	return out
}

func (a *API) listServices(*call) (any, error) {
	return map[string]any{"vipServices": append([]Service{}, a.net.Services()...)}, nil // [] rather than null
}

func (a *API) getService(c *call) (any, error) {
	name := tailcfg.ServiceName(c.PathValue("name"))
	for _, s := range a.net.Services() {
		if s.Name == name {
			return s, nil
		}
	}
	return nil, notFound("service")
}

// putService creates a service or replaces it completely. There is no ETag.
func (a *API) putService(c *call) (any, error) {
	var req Service
	if err := c.decode(&req); err != nil {
		return nil, err
	}
	name := tailcfg.ServiceName(c.PathValue("name"))
	if err := name.Validate(); err != nil || req.Name != "" && req.Name != name {
		return nil, badRequest("%q is not the name of a service, or differs from the path: %v", req.Name, err)
	}
	if err := checkPorts(req.Ports); err != nil {
		return nil, err
	}
	if err := a.mayTag(c.token, req.Tags); err != nil {
		return nil, err
	}
	req.Name = name
	s, err := a.net.PutService(req)
	if err != nil {
		return nil, badRequest("%v", err)
	}
	return s, nil
}

func checkPorts(ports []string) error {
	if len(ports) == 1 && ports[0] == "do-not-validate" {
		return nil
	}
	for _, p := range ports {
		num, ok := strings.CutPrefix(p, "tcp:")
		n, err := strconv.ParseUint(num, 10, 16)
		if !ok || err != nil || n == 0 {
			return badRequest("%q is not a port of a service such as tcp:443", p)
		}
	}
	return nil
}

func (a *API) deleteService(c *call) (any, error) {
	if !a.net.DeleteService(tailcfg.ServiceName(c.PathValue("name"))) {
		return nil, notFound("service")
	}
	return empty(c.w), nil
}

// hostJSON is a device that offers to host a service, or is approved to.
type hostJSON struct {
	StableNodeID  tailcfg.StableNodeID `json:"stableNodeID"`
	ApprovalLevel string               `json:"approvalLevel"`
	Configured    bool                 `json:"configured"`
}

// listHosts lists the hosts of a service. The real control server queries the node for its services. This fake knows
// only that a node offers services, and assumes that it offers each.
func (a *API) listHosts(c *call) (any, error) {
	if _, err := a.getService(c); err != nil {
		return nil, err
	}
	approved := a.net.Hosts(tailcfg.ServiceName(c.PathValue("name")))
	list := []hostJSON{}
	for _, d := range a.net.Devices() {
		h := hostJSON{StableNodeID: d.StableID, ApprovalLevel: "not-approved", Configured: len(d.Tags) > 0 && d.Hostinfo.ServicesHash() != ""}
		if slices.Contains(approved, d.StableID) {
			h.ApprovalLevel = "approved:manual"
		}
		if h.Configured || h.ApprovalLevel != "not-approved" {
			list = append(list, h)
		}
	}
	return map[string]any{"hosts": list}, nil
}

func (a *API) approveHost(c *call) (any, error) {
	var req struct {
		Approved bool `json:"approved"`
	}
	if err := c.decode(&req); err != nil {
		return nil, err
	}
	if _, err := a.getService(c); err != nil {
		return nil, err
	}
	d, err := a.device(c)
	if err != nil {
		return nil, err
	}
	if len(d.Tags) == 0 {
		return nil, badRequest("%s is not tagged: only a tagged device can be a service's host", d.StableID)
	}
	if !a.net.ApproveHost(tailcfg.ServiceName(c.PathValue("name")), d.StableID, req.Approved) {
		return nil, notFound("service or device")
	}
	return empty(c.w), nil
}

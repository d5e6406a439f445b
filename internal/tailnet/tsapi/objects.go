package tsapi

import (
	"context"
	"errors"

	tailscale "tailscale.com/client/tailscale/v2"
)

// Device returns the device with that ID, or an *[Error] of class NotFound.
func (c *Client) Device(ctx context.Context, id string) (Device, error) {
	return request(ctx, c, GetDevice, func(ctx context.Context, api *tailscale.Client) (Device, error) {
		d, err := api.Devices().Get(ctx, id)
		if err != nil {
			return Device{}, err
		}
		return device(d)
	})
}

// DeleteDevice deletes the device with that ID. It returns nil if the device does not exist.
func (c *Client) DeleteDevice(ctx context.Context, id string) error {
	return gone(c.call(ctx, DeleteDevice, func(ctx context.Context, api *tailscale.Client) error { return api.Devices().Delete(ctx, id) }))
}

// Service returns the current state of the service with that name (svc:name), or an *[Error] of
// class NotFound.
func (c *Client) Service(ctx context.Context, name string) (Service, error) {
	return request(ctx, c, GetService, func(ctx context.Context, api *tailscale.Client) (Service, error) {
		s, err := api.VIPServices().Get(ctx, name)
		if err != nil {
			return Service{}, err
		}
		if s.Name != name {
			return Service{}, errors.New("the response is another service")
		}
		return service(s)
	})
}

// PutService creates a service or replaces it completely. The API has no conditional writes, so the
// last writer wins; callers must read the service again afterwards. Addrs must be the addresses of
// an existing service. For a new service they must be empty, or one requested IPv4 address.
func (c *Client) PutService(ctx context.Context, s Service) error {
	req := tailscale.VIPService{Name: s.Name, Comment: s.Comment, Annotations: s.Annotations, Ports: s.Ports, Tags: s.Tags}
	for _, a := range s.Addrs {
		req.Addrs = append(req.Addrs, a.String())
	}
	return c.call(ctx, PutService, func(ctx context.Context, api *tailscale.Client) error {
		return api.VIPServices().CreateOrUpdate(ctx, req)
	})
}

// DeleteService deletes a service. It returns nil if the service does not exist.
func (c *Client) DeleteService(ctx context.Context, name string) error {
	return gone(c.call(ctx, DeleteService, func(ctx context.Context, api *tailscale.Client) error { return api.VIPServices().Delete(ctx, name) }))
}

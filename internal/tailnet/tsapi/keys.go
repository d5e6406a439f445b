package tsapi

import (
	"context"
	"errors"
	"time"

	tailscale "tailscale.com/client/tailscale/v2"

	"github.com/tailplane/tailplane/internal/util/secret"
)

// KeyRequest describes an auth key and the devices that log in with it. Every key is preauthorized
// and can be used once.
type KeyRequest struct {
	Tags        []string
	Ephemeral   bool
	Life        time.Duration // whole seconds
	Description string        // at most 50 letters, digits, hyphens and spaces
}

// Key is an auth key. Secret is set only by CreateKey.
type Key struct {
	ID          string
	Secret      secret.Text
	Description string
	Expires     time.Time
	Valid       bool
}

// CreateKey creates a key. It does not retry: after a lost response the key may exist, and can be
// found by its description.
func (c *Client) CreateKey(ctx context.Context, r KeyRequest) (Key, error) {
	return request(ctx, c, CreateKey, func(ctx context.Context, api *tailscale.Client) (Key, error) {
		req := tailscale.CreateKeyRequest{ExpirySeconds: int64(r.Life / time.Second), Description: r.Description}
		create := &req.Capabilities.Devices.Create
		create.Ephemeral, create.Preauthorized, create.Tags = r.Ephemeral, true, r.Tags
		k, err := api.Keys().CreateAuthKey(ctx, req)
		if err != nil {
			return Key{}, err
		}
		if k.ID == "" || k.Key == "" {
			return Key{}, errors.New("the response has no key")
		}
		return Key{ID: k.ID, Secret: secret.New(k.Key), Description: k.Description, Expires: k.Expires, Valid: !k.Invalid}, nil
	})
}

// Keys returns the IDs of all active keys of the tailnet.
func (c *Client) Keys(ctx context.Context) ([]string, error) {
	return list(ctx, c, ListKeys, "keys", func(ctx context.Context, api *tailscale.Client) ([]tailscale.Key, error) {
		return api.Keys().List(ctx, true)
	}, func(k *tailscale.Key) (string, error) { return k.ID, nil })
}

// Key returns a key, even if it was deleted.
func (c *Client) Key(ctx context.Context, id string) (Key, error) {
	return request(ctx, c, GetKey, func(ctx context.Context, api *tailscale.Client) (Key, error) {
		k, err := api.Keys().Get(ctx, id)
		if err != nil {
			return Key{}, err
		}
		if k.ID != id {
			return Key{}, errors.New("the response is another key")
		}
		return Key{ID: k.ID, Description: k.Description, Expires: k.Expires, Valid: !k.Invalid}, nil
	})
}

// DeleteKey deletes a key. It returns nil if the key does not exist.
func (c *Client) DeleteKey(ctx context.Context, id string) error {
	return gone(c.call(ctx, DeleteKey, func(ctx context.Context, api *tailscale.Client) error { return api.Keys().Delete(ctx, id) }))
}

// gone returns nil for a NotFound error of the operation.
func gone(err error) error {
	if failure, ok := errors.AsType[*Error](err); ok && failure.Class == NotFound && !failure.AtToken {
		return nil
	}
	return err
}

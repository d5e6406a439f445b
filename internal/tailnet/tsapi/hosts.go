package tsapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	tailscale "tailscale.com/client/tailscale/v2"
)

// A Host is a device that offers to host a service.
type Host struct {
	Device     string // stable ID of the device
	Approved   bool   // approved by the tailnet
	Configured bool   // configured to host it
}

// Hosts returns the devices that offer to host a service, and whether each is approved.
func (c *Client) Hosts(ctx context.Context, service string) ([]Host, error) {
	return request(ctx, c, ListHosts, func(ctx context.Context, api *tailscale.Client) ([]Host, error) {
		var answer struct {
			Hosts *[]struct {
				StableNodeID  string     `json:"stableNodeID"`
				ApprovalLevel string     `json:"approvalLevel"`
				Configured    configured `json:"configured"`
			} `json:"hosts"`
		}
		if err := c.callRaw(ctx, api, http.MethodGet, "services/"+url.PathEscape(service)+"/devices", nil, &answer); err != nil {
			return nil, err
		}
		if answer.Hosts == nil {
			return nil, errors.New(`the response has no "hosts"`)
		}
		out := make([]Host, 0, len(*answer.Hosts))
		for _, h := range *answer.Hosts {
			if h.StableNodeID == "" {
				return nil, errors.New("a host without an ID")
			}
			out = append(out, Host{Device: h.StableNodeID, Approved: strings.HasPrefix(h.ApprovalLevel, "approved"), Configured: bool(h.Configured)})
		}
		return out, nil
	})
}

// ApproveHost approves a device as a host of a service.
func (c *Client) ApproveHost(ctx context.Context, service, device string) error {
	return c.call(ctx, ApproveHost, func(ctx context.Context, api *tailscale.Client) error {
		return c.callRaw(ctx, api, http.MethodPost, "services/"+url.PathEscape(service)+"/device/"+url.PathEscape(device)+"/approved", map[string]bool{"approved": true}, nil)
	})
}

// configured is a JSON boolean, or a string such as "not-configured".
type configured bool

// UnmarshalJSON implements [json.Unmarshaler].
func (c *configured) UnmarshalJSON(b []byte) error {
	var word string
	if json.Unmarshal(b, &word) == nil {
		*c = configured(word != "" && !strings.HasPrefix(word, "not"))
		return nil
	}
	return json.Unmarshal(b, (*bool)(c))
}

// callRaw sends a request that the client library has no method for. path is relative to the tailnet's
// path.
func (c *Client) callRaw(ctx context.Context, api *tailscale.Client, method, path string, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return err
		}
	}
	to := c.base.String() + "/api/v2/tailnet/" + url.PathEscape(c.config.Tailnet) + "/" + path
	req, err := http.NewRequestWithContext(ctx, method, to, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", c.config.UserAgent)
	req.Header.Set("Accept", "application/json")
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := api.HTTP.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	answer := exchangeOf(api).body
	if res.StatusCode/100 != 2 {
		var refusal tailscale.APIError
		if err := json.Unmarshal(answer, &refusal); err != nil {
			return fmt.Errorf("status %d", res.StatusCode)
		}
		return refusal
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(answer, out)
}

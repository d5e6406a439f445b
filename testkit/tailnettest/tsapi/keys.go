package tsapi

import (
	"cmp"
	"net/http"
	"regexp"
	"time"
)

const (
	defaultKeyLife = 90 * 24 * time.Hour
	maxKeyLife     = 90 * 24 * time.Hour
)

// keyJSON is an auth key in the form of the API.
type keyJSON struct {
	ID           string           `json:"id"`
	Key          string           `json:"key,omitempty"` // at creation only
	KeyType      string           `json:"keyType,omitempty"`
	Description  string           `json:"description,omitempty"`
	Created      *time.Time       `json:"created,omitempty"`
	Expires      *time.Time       `json:"expires,omitempty"`
	Revoked      *time.Time       `json:"revoked,omitempty"`
	Invalid      bool             `json:"invalid"`
	Capabilities *keyCapabilities `json:"capabilities,omitempty"`
	Tags         []string         `json:"tags,omitempty"`
}

type keyCapabilities struct {
	Devices struct {
		Create struct {
			Reusable      bool     `json:"reusable"`
			Ephemeral     bool     `json:"ephemeral"`
			Preauthorized bool     `json:"preauthorized"`
			Tags          []string `json:"tags"`
		} `json:"create"`
	} `json:"devices"`
}

func (a *API) keyRoutes() []route {
	return []route{
		{"POST /tailnet/{tailnet}/keys", "auth_keys", a.createKey},
		{"GET /tailnet/{tailnet}/keys", "auth_keys", a.listKeys},
		{"GET /tailnet/{tailnet}/keys/{id}", "auth_keys", a.getKey},
		{"DELETE /tailnet/{tailnet}/keys/{id}", "auth_keys", a.deleteKey},
	}
}

var keyDescription = regexp.MustCompile(`^[A-Za-z0-9 -]{0,50}$`)

func (a *API) createKey(c *call) (any, error) {
	var req struct {
		KeyType       string          `json:"keyType"`
		Capabilities  keyCapabilities `json:"capabilities"`
		ExpirySeconds int64           `json:"expirySeconds"`
		Description   string          `json:"description"`
	}
	if err := c.decode(&req); err != nil {
		return nil, err
	}
	create := req.Capabilities.Devices.Create
	life := cmp.Or(time.Duration(req.ExpirySeconds)*time.Second, defaultKeyLife)
	switch {
	case req.KeyType != "" && req.KeyType != "auth":
		return nil, badRequest("keys of type %q are not on the testbed", req.KeyType)
	case !keyDescription.MatchString(req.Description):
		return nil, badRequest("a description has at most 50 letters, digits, hyphens and spaces")
	case life < 0 || life > maxKeyLife:
		return nil, badRequest("expirySeconds must be between 1 and %d", int(maxKeyLife.Seconds()))
	}
	if err := a.mayTag(c.token, create.Tags); err != nil {
		return nil, err
	}
	k, text := a.net.Mint(Key{Description: req.Description, Tags: create.Tags, Ephemeral: create.Ephemeral, Reusable: create.Reusable,
		Expires: time.Now().Add(life)})
	out := k.json()
	out.Key = text
	return out, nil
}

// mayTag checks each of the tags: it must be one of the token's tags, or owned by one of them. A key of an OAuth
// client must have at least one tag.
func (a *API) mayTag(t *token, tags []string) error {
	p := a.net.Policy()
	for _, name := range tags {
		if !p.MayTag(t.tags, name) {
			return badRequest("requested tags %v are invalid or not permitted", tags)
		}
	}
	if len(tags) == 0 {
		return badRequest("requested tags %v are invalid or not permitted", tags)
	}
	return nil
}

func (k *Key) json() *keyJSON {
	out := &keyJSON{ID: k.ID, KeyType: "auth", Description: k.Description, Created: new(k.Created.UTC()),
		Invalid: !k.Valid, Tags: k.Tags, Capabilities: &keyCapabilities{}}
	create := &out.Capabilities.Devices.Create
	create.Reusable, create.Ephemeral, create.Preauthorized, create.Tags = k.Reusable, k.Ephemeral, true, k.Tags
	if !k.Expires.IsZero() {
		out.Expires = new(k.Expires.UTC())
	}
	if !k.Revoked.IsZero() {
		out.Revoked = new(k.Revoked.UTC())
	}
	return out
}

// listKeys returns only IDs, and only of valid keys, as the real list does.
func (a *API) listKeys(*call) (any, error) {
	list := []map[string]string{}
	for _, k := range a.net.Keys() {
		if k.Valid {
			list = append(list, map[string]string{"id": k.ID})
		}
	}
	return map[string]any{"keys": list}, nil
}

func (a *API) getKey(c *call) (any, error) {
	for _, k := range a.net.Keys() {
		if k.ID == c.PathValue("id") {
			return k.json(), nil
		}
	}
	return nil, notFound("key")
}

// deleteKey revokes a key. It stays readable.
func (a *API) deleteKey(c *call) (any, error) {
	if !a.net.Revoke(c.PathValue("id")) {
		return nil, notFound("key")
	}
	return empty(c.w), nil
}

// empty sets the headers of a response without content and returns its body.
func empty(w http.ResponseWriter) []byte {
	w.Header().Set("Content-Type", "application/json")
	return nil
}

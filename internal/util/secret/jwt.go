package secret

import (
	"encoding/base64"
	"errors"
	"strings"
)

// JWTPayload returns the claims of a JSON Web Token as they are in it, in JSON. It verifies nothing: it is for tokens whose claims the
// caller may believe, or only reads to choose what to do. Its errors contain no part of the token.
func JWTPayload(token string) ([]byte, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil, errors.New("it is not a JSON Web Token")
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return nil, errors.New("its claims are not base64")
	}
	return payload, nil
}

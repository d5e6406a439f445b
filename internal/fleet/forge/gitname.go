package forge

import "strings"

const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/-"

// isBranch reports whether a name can be a branch's; of those that git permits only
// the plain ones.
func isBranch(s string) bool {
	return len(s) <= 200 && strings.Trim(s, plain) == "" && isPath(s) &&
		!strings.HasPrefix(s, "-") && !strings.Contains(s, "..") && !strings.HasSuffix(s, ".") && !strings.HasSuffix(s, ".lock")
}

// isPath reports whether a text is the path of a file in a repository. What leads out
// of it, or into git's own directory or a forge's, is not.
func isPath(s string) bool {
	if s == "" || len(s) > 1000 || strings.ContainsAny(s, "\\\x00\r\n") {
		return false
	}
	for i, part := range strings.Split(s, "/") {
		switch strings.ToLower(part) {
		case "", ".", "..", ".git":
			return false
		case ".github", ".gitlab", ".gitlab-ci.yml":
			if i == 0 {
				return false // what is in there runs
			}
		}
	}
	return true
}

// isCommit reports whether a text is the name of a commit, whole.
func isCommit(s string) bool {
	return len(s) >= 40 && len(s) <= 64 && strings.Trim(s, "0123456789abcdef") == ""
}

// coAuthors are the names and addresses of the trailers by which a commit says who
// else wrote it.
func coAuthors(message string) (out []string) {
	for l := range strings.Lines(message) {
		key, who, ok := strings.Cut(strings.TrimSpace(l), ":")
		if !ok || !strings.EqualFold(strings.TrimSpace(key), "Co-authored-by") {
			continue
		}
		name, address, _ := strings.Cut(who, "<")
		address, _, _ = strings.Cut(address, ">")
		for _, s := range []string{strings.TrimSpace(name), strings.TrimSpace(address)} {
			if s != "" {
				out = append(out, s)
			}
		}
	}
	return out
}

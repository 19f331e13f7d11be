# The entries of the packages named in `names` (separated by spaces) out of a lock file, hashes included:
#   awk -v names="setuptools" -f deploy/locked.awk deploy/locks/dev.txt
BEGIN { count = split(names, list, " "); for (i = 1; i <= count; i++) wanted[list[i]] = 1 }
/^[A-Za-z0-9]/ { split($1, part, "=="); wanted_now = (part[1] in wanted); if (wanted_now) found++ }
wanted_now { print }
END { if (found != count) { print "deploy/locked.awk: not all of these are locked: " names > "/dev/stderr"; exit 1 } }

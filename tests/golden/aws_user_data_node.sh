#!/bin/bash
# A node of the stack demo. Anyone on this machine can read this: it holds no secret.
role=node stack=demo region=us-east-1 bucket=proteus-demo-123456789012-us-east-1 orphan_after=300
digest=abcdef0123456789 package=s3://proteus-demo-123456789012-us-east-1/proteus/demo/package/abcdef0123456789
set -euo pipefail
export AWS_DEFAULT_REGION=$region HOME=/root
# For the role's credentials AWS' tools ask a machine that has just started once, for a second.
export AWS_METADATA_SERVICE_TIMEOUT=5 AWS_METADATA_SERVICE_NUM_ATTEMPTS=4
shutdown -h +30 "proteus: this machine was not ready in time"
if [ $role = node ]; then  # one that boots again would run nothing of the job, not even its watchdog
  cloud=/var/lib/cloud
  id=$(cat $cloud/data/instance-id) boot=$(cat /proc/sys/kernel/random/boot_id)
  mkdir -p $cloud/scripts/per-boot
  cat > $cloud/scripts/per-boot/proteus <<END
#!/bin/sh
# Not on a machine that was made from an image of this one.
grep -q $boot /proc/sys/kernel/random/boot_id || ! grep -qx $id $cloud/data/instance-id ||
  shutdown -h now "proteus: this machine has booted again"
END
  chmod 755 $cloud/scripts/per-boot/proteus
fi
home=/opt/proteus
if [ "$(cat $home/digest 2>/dev/null)" != $digest ]; then  # an image may bring the package along
  rm -rf $home  # pip would keep another build of the same version
  python=$(command -v python3.12 || command -v python3.11 || true)
  if [ -z "$python" ]; then
    dnf install -y -q python3.11
    python=/usr/bin/python3.11
  fi
  "$python" -m venv $home
  aws s3 cp --quiet --recursive $package/ $home/package/
  wheels=
  command -v nvidia-smi >/dev/null || wheels="--extra-index-url https://download.pytorch.org/whl/cpu"
  $home/bin/python -m pip install --quiet $wheels -c $home/package/constraints.txt $home/package/*.whl
  echo $digest > $home/digest
fi
[ $role = node ] || command -v nft >/dev/null || dnf install -y -q nftables
exec $home/bin/python -m agileml.aws.boot $role --stack $stack --region $region --bucket $bucket \
  --orphan-after $orphan_after

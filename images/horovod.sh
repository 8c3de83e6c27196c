# Puts Horovod for the Python and torch of this image into a folder: sh horovod.sh cpu|cuda FOLDER
set -eu
export PYTHONPATH=/source
build="python -m hvdkit horovod build -o /wheel"
if [ "$1" = cuda ]; then build="$build --cuda"; fi
# Wheels that came with the build join those that earlier builds on this machine left here.
mkdir -p /root/.cache/hvdkit/horovod
cp -an /wheels/horovod/. /root/.cache/hvdkit/horovod/
# Without a compiler this succeeds exactly when the right wheel is there.
if ! $build; then
    echo "there is no wheel of Horovod for this image yet: compiling it"
    apt-get update
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends g++ python3-dev
    $build
fi
pip install --constraint /opt/hvdkit/share/hvdkit/constraints.txt --prefix "$2" /wheel/*.whl
